"""Paired comparisons: their errors by simulation, their edges by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from benchmarks import verdicts
from lm_latent_eval.estimators.paired import (
    FEWEST_TEXTS,
    PairedAccuracy,
    PairedDifference,
    wilson,
)


def compared(differences, units, draws=0.0, **more):
    d = torch.as_tensor(differences, dtype=torch.float64)
    return PairedDifference.of(
        d, torch.as_tensor(units), draws_stderr=torch.full_like(d, draws), **more
    )


def test_the_errors_are_what_they_say():
    """Texts are drawn with lengths, a difference each, and Monte Carlo noise."""
    generator = torch.Generator().manual_seed(0)
    rate, noise, count, trials = -0.02, 0.4, 150, 400
    values, errors, draws, texts, covered = [], [], [], [], 0
    for _ in range(trials):
        units = torch.randint(20, 200, (count,), generator=generator)
        true = rate * units + 0.05 * units * torch.randn(count, generator=generator)
        found = compared(
            true + noise * torch.randn(count, generator=generator),
            units,
            noise,
        )
        values.append(found.value)
        errors.append(found.stderr)
        draws.append(found.draws_stderr)
        texts.append(found.texts_stderr)
        covered += found.interval[0] <= rate <= found.interval[1]
    spread = torch.tensor(values).std().item()
    mean = torch.tensor(errors).mean().item()
    assert mean == pytest.approx(spread, rel=0.12), "of 400: 3.5 of its own errors"
    assert 0.91 <= covered / trials <= 0.98
    assert max(draws) < min(texts), "premise: the parts are told apart"
    assert all(
        e == pytest.approx(math.hypot(d, t))
        for e, d, t in zip(errors, draws, texts, strict=True)
    )


def test_what_all_texts_agree_on_has_no_error_over_texts():
    found = compared([-1.0, -2.0, -4.0], [10, 20, 40])
    assert found.value == pytest.approx(-0.1)
    assert found.interval == pytest.approx((-0.1, -0.1))
    assert (found.stderr, found.share_won) == (pytest.approx(0, abs=1e-12), 1.0)


def test_one_text_says_nothing_of_others():
    found = compared([-1.0], [10], 0.5)
    assert found.texts_stderr == found.stderr == math.inf
    assert found.interval == (-math.inf, math.inf)


def test_two_texts_or_questions_have_an_error():
    low, high = compared([-2.0, -0.5], [0.5, 2.0]).interval
    assert low < -1 < high
    assert compared([-1.0, -3.0], [10, 10]).texts_stderr == pytest.approx(0.1)
    a, b = torch.tensor([True, False]), torch.tensor([True, True])
    assert PairedAccuracy.of(a, b).stderr == pytest.approx(math.sqrt(2 - 1 / 4) / 4)
    assert 0 < PairedAccuracy.of(b, b).stderr < 1


def test_runs_are_an_error_of_their_own():
    alone, runs = (
        compared([-1.0, -3.0, 1.0], [10, 10, 10], runs_stderr=r) for r in (0.0, 0.3)
    )
    assert runs.stderr == pytest.approx(math.hypot(alone.stderr, 0.3))
    assert runs.texts_stderr == alone.texts_stderr
    assert alone.share_won == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("differences", "units", "message"),
    [
        ([], [], "needs texts"),
        ([1.0], [0], "got 1 texts of 0 units"),
        ([1.0, math.nan], [1, 1], r"differences\[1\] is not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(differences, units, message):
    with pytest.raises(ValueError, match=message):
        compared(differences, units)


def test_accuracies_are_compared_by_the_questions_that_differ():
    a = torch.tensor([True] * 30 + [False] * 10)
    b = torch.tensor([True] * 22 + [False] * 8 + [True] + [False] * 9)
    found = PairedAccuracy.of(a, b)
    assert found.accuracy == (pytest.approx(0.75), pytest.approx(23 / 40))
    assert (found.only_a, found.only_b) == (8, 1)
    two_sided = 2 * sum(math.comb(9, k) for k in (0, 1)) / 2**9
    assert found.p_value == pytest.approx(two_sided)
    assert found.stderr == pytest.approx(math.sqrt(10 - 49 / 42) / 42)
    assert PairedAccuracy.of(a, a).p_value == 1.0
    with pytest.raises(ValueError, match="at least one question"):
        PairedAccuracy.of(a[:0], b[:0])


def test_eight_of_eight_is_not_certain():
    a, b = torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.bool)
    found = PairedAccuracy.of(a, b)
    assert found.p_value == pytest.approx(2 / 2**8)
    assert found.stderr > 0.1
    low, high = wilson(8, 8)
    assert low == pytest.approx(0.6756, abs=1e-4)
    assert high == pytest.approx(1.0)


@pytest.mark.parametrize("kind", verdicts.KINDS)
@pytest.mark.parametrize("texts", [2, 9, 10, 12, 30, 100, 1000])
def test_verdicts_are_seldom_false(kind, texts):
    """At most 6 %, and what 2,000 trials leave open."""
    draw, trials = verdicts.KINDS[kind], 2000
    false = verdicts.decided(
        trials, texts, lambda generator: verdicts.of_texts(draw(generator, texts))
    )
    assert false <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / trials)
    assert (false == 0) == (texts < FEWEST_TEXTS)


@pytest.mark.parametrize("texts", [10, 100])
def test_two_runs_a_side_seldom_make_a_false_verdict(texts):
    trials = 2000
    false = verdicts.decided(trials, texts, lambda g: verdicts.of_runs(g, texts))
    assert false <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / trials)


@pytest.mark.parametrize("texts", [10, 12, 15, 300])
def test_what_differs_is_found_nearly_as_often_as_by_t(texts):
    """Nine tenths, and what 2,000 pairs of verdicts leave open."""
    assert verdicts.power(texts, 2000) > 0.9 - 3 * 0.01


def test_the_end_towards_a_tail_is_further():
    d = np.exp(np.random.default_rng(0).normal(size=40))
    low, high = compared(d, np.ones(40)).interval
    mean = d.mean()
    assert high - mean > 1.5 * (mean - low)
    turned = compared(-d, np.ones(40)).interval
    assert turned == pytest.approx((-high, -low))
    reach = stdtrit(39, 0.975) * d.std(ddof=1) / math.sqrt(40)
    assert 0.9 * reach < mean - low < reach, "what is added there is taken off here"
    few = compared(d[:9], np.ones(9))
    reach = stdtrit(8, 0.975) * few.stderr
    assert few.interval == pytest.approx((few.value - reach, few.value + reach))


def test_intervals_hold_the_mean_of_normal_differences():
    trials = 4000
    missed = verdicts.decided(
        trials, 14, lambda g: verdicts.of_texts(verdicts.normal(g, 14))
    )
    assert abs(missed - 0.05) < 3 * math.sqrt(0.05 * 0.95 / trials)
