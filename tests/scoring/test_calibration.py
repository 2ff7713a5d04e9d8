"""Texts drawn with their latents, and bounds from above, against lists of latents."""

import math
from functools import cache

import pytest
import torch

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.simulation import simulate, upper_bound
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import parts_of, rebuilt
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring.calibration import calibrate
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.text.words import END, START
from tests.test_laws import opened

LONGEST = {"rnng": 5}
"""Words of a text, 3 elsewhere: shorter sentences have but one tree."""
ERRORS = 4.5
"""Standard errors; 13 statistics are beyond one of them once in 10,000 runs."""
NIGHTLY = pytest.mark.nightly
WORD_BY_WORD = [
    *("entitynlm", "rnng"),
    *(pytest.param(n, marks=NIGHTLY) for n in ("kglm", "lrlm", "nklm")),
]


@pytest.mark.parametrize("name", WORD_BY_WORD)
def test_latents_are_drawn_from_the_posterior(name):
    """The mean of two functions of z over texts, against their exact expectations."""
    case, model, proposal = opened(name, "adapted")
    simulated = simulate(
        model,
        proposal,
        [stream_key(7, f"{name}/{n}") for n in range(1500)],
        start=START,
        end=END,
        most=LONGEST.get(name, 3),
        costs=lambda ids: [-math.inf if i == case.copied else 0.0 for i in ids],
        device="cpu",
    )
    texts = [text for _, text in simulated if text.words[-1] == END]

    @cache
    def listed_of(words):
        listed = fingerprint(case.every_latent([*words]))[0]
        return case.log_joint([*words]), listed

    assert len(texts) > 30, "premise: enough of them end"
    off, variance = torch.zeros(2).double(), torch.zeros(2).double()
    for text in texts:
        joint, listed = listed_of(tuple(text.words))
        log_p = joint.log_softmax(-1)
        here = listed == fingerprint(text.latents)[0]
        assert here.sum() == 1, "one latent of the list"
        finite = log_p.clamp_min(-1000)
        functions = torch.stack([finite, (listed % 7).double()])
        mean = functions @ log_p.exp()
        off += functions[:, here][:, 0] - mean
        variance += functions.square() @ log_p.exp() - mean.square()
    encoded = model.encode(case.batch([text.words]))
    last = pytest.approx(joint[here].item(), abs=1e-9)
    assert model.log_joint(encoded, text.latents)[0, 0] == last
    assert (variance > 0.5).all(), "premise: there is something to draw"
    assert (off.abs() < ERRORS * variance.sqrt()).all()


def test_a_text_of_which_nothing_is_found_is_not_left_out(kglm_directory):
    """Its gap has no end: no mean of the others' says anything."""
    checkpoint = load_checkpoint(kglm_directory)
    options = ScoringOptions(
        estimator="is", proposal="prior", num_samples=1, unk="closed"
    )
    scorer = Scorer(checkpoint, options, quiet=True)
    with pytest.raises(MissedSupportError, match="simulated/"):
        calibrate(scorer, 10, most=20)


@pytest.mark.parametrize(
    ("name", "which", "number"),
    [
        ("entitynlm", "prior", 2),
        pytest.param("kglm", "smoothing", 1, marks=NIGHTLY),
    ],
)
def test_the_bound_is_one_over_an_unbiased_estimate(name, which, number):
    """By proposals that need the true latent."""
    case, model, proposal = opened(name, which)
    text = [case.words[-1], case.words[1], END]
    joint = case.log_joint(text)
    latents, log_p = case.every_latent(text), joint.logsumexp(-1).item()
    generator = torch.Generator().manual_seed(3)
    trials = 150
    chosen = torch.multinomial(joint.softmax(-1), trials, True, generator=generator)
    upper = torch.tensor(
        [
            upper_bound(
                Texts(model, proposal, case.batch([text]), [stream_key(n, name)]),
                number,
                rebuilt(latents, [part[:, [z]] for part in parts_of(latents)]),
            )
            for n, z in enumerate(chosen.tolist())
        ]
    ).double()
    inverse = (log_p - upper).exp()
    within = ERRORS * inverse.std().item() / math.sqrt(trials) + 1e-6
    assert abs(inverse.mean().item() - 1) < within
    assert upper.mean().item() > log_p - within
