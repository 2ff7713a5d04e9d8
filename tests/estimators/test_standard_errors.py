"""Standard errors, and intervals of those that few replicates told: by trials."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.estimators import Bound, CorpusRate, Estimate
from lm_latent_eval.estimators.standard_errors import (
    pooled_degrees,
    ratio_stderr,
    widened,
)
from lm_latent_eval.wrappers.mdm.estimators import REPLICATES, estimated
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from tests.means import normal, uniform


def test_a_batch_of_ratios_is_each_of_them():
    a, b = uniform(2, 3, 5, 4, seed=0)
    found = ratio_stderr(a, b)
    assert found.shape == (3, 5)
    for row, (some, others) in enumerate(zip(a, b, strict=True)):
        for column, (x, y) in enumerate(zip(some, others, strict=True)):
            ratio = x.sum() / y.sum()
            squares = sum(float(n - ratio * m) ** 2 for n, m in zip(x, y, strict=True))
            expected = math.sqrt(squares * 4 / 3) / y.sum().item()
            assert found[row, column].item() == pytest.approx(expected, rel=1e-12)
    one_pair = ratio_stderr(a[..., :1], b[..., :1])
    assert one_pair.isposinf().all(), "unknown"


TRIALS = 4000

CHANCE = 3 * math.sqrt(0.95 * 0.05 / TRIALS)
"""Three standard errors of a share of them."""


def told(values):
    """Estimate a mean by replicates, as ``elbo`` does."""
    error = (values.std() / math.sqrt(len(values))).item()
    return replace(
        Estimate.exact(values.mean().item(), num_tokens=1),
        stderr=error,
        draws_stderr=error,
        draws_degrees=len(values) - 1,
        bound=Bound.ESTIMATED_LOWER,
    )


def coverage(corpora, **more):
    """Share of printed intervals that hold 0, of estimates with some other fields."""
    held = 0
    for estimates in corpora:
        units = torch.ones(len(estimates), dtype=torch.long)
        rate = CorpusRate.nats([replace(e, **more) for e in estimates], units)
        held += abs(rate.value) <= 1.96 * rate.monte_carlo_stderr
    return held / len(corpora)


WITHOUT_T = {"draws_degrees": math.inf}


@pytest.mark.parametrize("spreads", [(1.0,), (1.0, 1.0), (1.0, 0.2, 0.05), (1.0,) * 20])
@pytest.mark.parametrize("replicates", [5, pytest.param(8, marks=pytest.mark.nightly)])
def test_intervals_of_few_replicates_hold(replicates, spreads):
    trials = TRIALS // 4 if len(spreads) == 20 else TRIALS
    chance = CHANCE * math.sqrt(TRIALS / trials)
    noise = normal(trials, len(spreads), replicates, seed=0)
    noise *= torch.tensor(spreads, dtype=torch.float64)[:, None]
    corpora = [[told(text) for text in corpus] for corpus in noise]
    printed = coverage(corpora)
    # Degrees that are pooled are estimates, too: on the wide side of few texts.
    assert 0.95 - chance <= printed <= 0.95 + chance + 0.015 * (len(spreads) in (2, 3))
    if len(spreads) != 20:
        plain = coverage(corpora, **WITHOUT_T)
        assert plain < 0.94 - chance, "premise: a normal interval is too narrow"


LENGTH = 10


def answered(masked):
    """Give tokens a log p that follows from what is revealed, lopsidedly."""
    seen = (~masked).double() @ normal(LENGTH, LENGTH, seed=3, sd=0.3) - 2
    return SimpleNamespace(log_p=-torch.nn.functional.softplus(-seen) * masked)


def run(asking):
    """Answer what an estimator asks until it has its estimate."""
    masked = next(asking)
    while True:
        try:
            masked = asking.send(answered(masked))
        except StopIteration as stop:
            return stop.value.estimate


@pytest.mark.parametrize(
    "passes", [8, *(pytest.param(n, marks=pytest.mark.nightly) for n in (16, 64))]
)
def test_intervals_of_elbo_hold(passes):
    """Of one text, against the bound that all sets of masks give."""
    every = run(estimated(LENGTH, MDMOptions(num_samples=2**LENGTH), 0))
    assert every.bound is Bound.STRICT_LOWER and every.draws_degrees == math.inf
    options = MDMOptions(num_samples=passes)
    corpora = []
    for key in range(TRIALS // 2):
        found = run(estimated(LENGTH, options, key))
        assert found.draws_degrees == REPLICATES - 1
        corpora.append(
            [replace(found, log_evidence=found.log_evidence - every.log_evidence)]
        )
    printed, plain = coverage(corpora), coverage(corpora, **WITHOUT_T)
    # What one pass says is skewed, too, which no t makes good.
    assert printed >= 0.94 - CHANCE * math.sqrt(2)
    assert plain < 0.93, "premise: a normal interval is too narrow"


def test_degrees_of_a_sum():
    assert pooled_degrees([(0.0, 3)]) == pooled_degrees([]) == math.inf
    assert pooled_degrees([(2.0, math.inf), (0.0, 4)]) == math.inf
    assert pooled_degrees([(1e-200, 7)] * 3) == pytest.approx(21)
    assert pooled_degrees([(1.0, 7), (3.0, math.inf)]) == pytest.approx(100 * 7)
    parts = [told(torch.tensor([0.0, 1, 2])), told(torch.tensor([5.0, 6, 7]))]
    assert Estimate.product(parts).draws_degrees == pytest.approx(4)
    assert widened(math.inf, 4) == math.inf and widened(0.0, 4) == 0.0
    assert widened(1.0, 1e9) == pytest.approx(1)


def test_draws_that_are_shared_have_no_more_degrees():
    pair = [told(torch.tensor([0.0, 1, 2]))] * 2
    units = torch.tensor([1, 1])
    apart, together = (
        CorpusRate.nats(pair, units, streams).draws_stderr
        for streams in (["a", "b"], ["a", "a"])
    )
    one = pair[0].draws_stderr
    assert together == pytest.approx(widened(2 * one, 2) / 2)
    assert apart == pytest.approx(widened(math.sqrt(2) * one, 4) / 2)


@pytest.mark.parametrize("longest", [1e4, 1e9])
def test_the_rest_of_next_to_all_units_tells_no_error(longest):
    units = torch.tensor([longest, 1.0, 1.0, 1.0])
    estimates = [Estimate.exact(-2 * n, num_tokens=1) for n in units.tolist()]
    rate = CorpusRate.nats(estimates, units)
    assert rate.value == pytest.approx(2.0)
    assert rate.stderr is None and rate.monte_carlo_stderr == 0.0
