"""What estimators refuse, and what the error names."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import lm_latent_eval.estimators as of
from lm_latent_eval.estimators import choices, paired, power

NAN, INF = math.nan, math.inf
FOUND = of.Estimate.from_log_weights(torch.zeros(3), num_tokens=12)
NONE = torch.full((7,), -torch.inf)
DEAD = NONE.expand(2, 7)
RAGGED = [torch.zeros(4), torch.zeros(4), torch.zeros(5)]
TWO = torch.tensor([-3.0, -2.0])
HEAVY = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 2.5]]).log()
QUESTION = torch.zeros(3, 4), torch.zeros(4), torch.zeros(3)


MADE = [
    partial(make, num_tokens=1)
    for make in (of.Estimate.from_log_weights, of.Estimate.from_beam)
]
CHANGED = partial(replace, FOUND)
CERTIFIED = partial(of.certified_log_likelihood, TWO)


def pair(differences, units):
    d = torch.tensor(differences, dtype=torch.float64)
    none = torch.zeros_like(d)
    return paired.PairedDifference.of(d, torch.tensor(units), draws_stderr=none)


WEIGHED = (of.log_evidence, of.relative_variance, of.stderr)
WEIGHED += (of.effective_sample_size, of.pareto_k)


def table(value):
    """Weights of which the second row goes wrong at its second."""
    return torch.tensor([[0.0, 0.0, 0.0], [0.0, value, value]])


REFUSED = [
    *((r"shape \(K,\); got \(2, 3\)", make, torch.zeros(2, 3)) for make in MADE),
    *((r"log_w\[1\] is nan", make, torch.tensor([0.0, NAN])) for make in MADE),
    ("num_tokens must be at least 0; got -1", partial(CHANGED, num_tokens=-1)),
    ("a product of no estimates", of.Estimate.product, []),
    *(
        (f"log_evidence must be finite; got {x}", partial(CHANGED, log_evidence=x))
        for x in (-INF, NAN)
    ),
    ("error must be at least 0; got nan", partial(CHANGED, stderr=NAN)),
    ("error must be at least 0; got -0.1", partial(CHANGED, draws_stderr=-0.1)),
    ("num_samples must be at least 1; got 0", partial(CHANGED, num_samples=0)),
    # Corpora
    (r"log_w\[2\] has 5 samples .* same K", of.corpus_weights, RAGGED),
    ("all 2 products of 2 inputs' w", of.corpus_perplexity, torch.eye(2).log(), 2),
    (r"log_evidences\[1\] is nan", of.instance_perplexity, torch.tensor([0, NAN]), 9),
    ("num_tokens must be at least 1 in all; got 0", of.instance_perplexity, TWO, 0),
    (r"num_tokens\[1\] is -2", of.instance_perplexity, TWO, torch.tensor([5, -2])),
    (r"must have shape \(N,\)", of.instance_perplexity, torch.zeros(0), 5),
    (r"has shape \(3,\).*\(2,\)", of.CorpusRate.nats, [FOUND] * 2, torch.ones(3)),
    *(
        ("confidence must be between 0 and 1", CERTIFIED, x)
        for x in (0.0, 1.0, -0.5, 95, NAN)
    ),
    ("multiplicity must be at least 1; got 0", partial(CERTIFIED, multiplicity=0)),
    ("configurations must be at least 1", partial(CERTIFIED, num_configurations=0)),
    (r"log_evidences\[1\] is -inf", of.certified_log_likelihood, torch.eye(2)[0].log()),
    # Weights
    *(
        (rf"log_w\[1, 1\] is {value}", function, table(value))
        for function in (*WEIGHED, of.sample_size_curve, of.checked_weights)
        for value in (NAN, INF)
    ),
    ("at least 1; got 0", of.log_grid, 0),
    *(
        (rf"sizes\[1\] is {n}; expected 1 to 2", of.sample_size_curve, TWO, [1, n])
        for n in (0, -1, 3)
    ),
    ("same draws have the same shape", of.log_ratio_stderr, TWO, HEAVY),
    *(
        (f"finite; got {draws}, {texts}", of.enough_samples, 100, draws, texts)
        for draws, texts in ((0.0, 0.2), (0.1, INF), (INF, 0.2), (0.1, 0.0))
    ),
    (r"draw 2 of row 1 weighs 2\.5, .*above 2:", of.probability_interval, HEAVY, 2.0),
    # Choices
    *(
        ("as many replicates of every option", choices.is_undecided, wrong)
        for wrong in ([], [[]], [[1.0, 2.0], [1.0, 2.0, 3.0]])
    ),
    # Comparisons
    ("needs texts", pair, [], []),
    ("got 1 texts of 0 units", pair, [1.0], [0]),
    (r"differences\[1\] is not finite", pair, [1.0, NAN], [1, 1]),
    ("at least one question", paired.PairedAccuracy.of, NONE[:0] > 0, NONE[:0] > 0),
    ("positive difference", power.needed, 0.0, 0.1, 50),
    # Rates
    ("no token is predicted", of.perplexity, -1.0, 0),
    ("finite; got nan", of.InformationRate.of, NAN, 2),
    ("num_units must be at least 1; got 0", of.InformationRate.of, -3.0, 0),
    ("stderr", lambda: of.InformationRate.of(-3.0, 1, stderr=-1)),
    (r"at least 1; got 0\.5", of.InformationRate.of_perplexity, 0.5),
    ("above 0; got 0", of.InformationRate(1.0).per, 0),
]
"""What the error says, and a call."""


@pytest.mark.parametrize(("message", "call"), [(m, c) for m, *c in REFUSED])
def test_it_says_what_is_wrong(message, call):
    function, *arguments = call
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@pytest.mark.parametrize(
    ("who", "make"),
    [("proposal", of.Estimate.from_log_weights), ("beam", of.Estimate.from_beam)],
)
def test_missed_support_is_an_error(who, make):
    with pytest.raises(of.MissedSupportError, match=rf"{who} misses .* all .*latents"):
        make(NONE, num_tokens=12)
    assert issubclass(of.MissedSupportError, ValueError)


@pytest.mark.parametrize(
    "value",
    [
        *(torch.zeros(shape) for shape in ((), (0,), (3, 0))),
        *([0.5], None, np.zeros(3), torch.zeros(3, dtype=torch.long)),
    ],
)
def test_only_tensors_with_samples_are_weights(value):
    message = "K >= 1|log_w must be a floating-point tensor"
    with pytest.raises((TypeError, ValueError), match=message):
        of.log_evidence(value)
    with pytest.raises(TypeError, match="log_evidences must be a floating-point"):
        of.instance_perplexity([-3.0], 5)
