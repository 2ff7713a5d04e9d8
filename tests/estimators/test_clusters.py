"""Clusters, repeats, power and many comparisons: by simulation, and by other ways."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from benchmarks import verdicts
from lm_latent_eval.estimators.choices import pass_at, repeat_stderr
from lm_latent_eval.estimators.paired import (
    PairedAccuracy,
    PairedDifference,
    groups,
    holm_adjusted,
    holm_levels,
    power_of,
)
from lm_latent_eval.estimators.power import (
    needed,
    needed_questions,
    power_of_mcnemar,
)


def paired(d, units, clusters=None, **more):
    d, units = (torch.as_tensor(each, dtype=torch.float64) for each in (d, units))
    zeros = torch.zeros_like(d)
    return PairedDifference.of(d, units, draws_stderr=zeros, clusters=clusters, **more)


def test_clusters_of_one_size_are_their_sums():
    d = np.random.default_rng(0).normal(size=(12, 5)).cumsum(1)
    names = [f"passage {n}" for n in range(12) for _ in range(5)]
    found = paired(d.ravel(), np.ones(60), names)
    sums = paired(d.sum(1), np.full(12, 5.0))
    assert found.interval == pytest.approx(sums.interval)
    assert (found.num_texts, found.num_clusters, sums.num_clusters) == (60, 12, None)
    assert found.degrees == pytest.approx(11)
    assert found.stderr > 1.5 * paired(d.ravel(), np.ones(60)).stderr, "premise"


def test_unequal_clusters_have_the_moments_of_their_residuals():
    """The same traces by matrices."""
    u = np.array([1.0, 2.0, 2.0, 7.0, 20.0])
    residue = np.eye(5) - np.outer(u, np.ones(5)) / u.sum()
    product = residue.T @ residue @ np.diag(u**2)
    degrees = np.trace(product) ** 2 / np.trace(product @ product)
    d = np.array([0.3, -1.0, 0.5, 2.0, -4.0])
    found = paired(d, u, "abcde")
    assert found.degrees == pytest.approx(degrees)
    squares = ((residue @ d) ** 2).sum() * (u**2).sum() / np.trace(product)
    assert found.texts_stderr == pytest.approx(math.sqrt(squares) / u.sum())


@pytest.mark.parametrize("equal", [True, False])
def test_false_verdicts_with_clusters_of_ten(equal):
    """At most 6 %, and of those that know of none far more."""
    trials = 600
    false, unaware = (
        verdicts.decided(
            trials,
            150,
            lambda g, a=aware: verdicts.of_clusters(g, 150, equal, aware=a),
        )
        for aware in (True, False)
    )
    assert false <= 0.06 + 2 * math.sqrt(0.06 * 0.94 / trials)
    assert unaware > 0.2


def test_few_clusters_have_no_verdict():
    d = np.arange(90.0) + 50
    found = paired(d, np.ones(90), [n % 9 for n in range(90)])
    assert found.undecided == "9 clusters are too few for a verdict, which takes 10"


@pytest.mark.parametrize("more", [{}, {"runs_stderr": 0.05, "runs_degrees": 3.0}])
def test_a_p_value_is_where_the_interval_ends(more):
    d = np.random.default_rng(3).exponential(size=15) - 0.4
    found = paired(d, np.ones(15), **more)
    low, _ = found.interval_at(1 - found.p_value)
    assert low == pytest.approx(0, abs=1e-6)
    assert found.margin_at(1 - 2 * found.p_value) > 0 > found.margin_at(0.999)


def test_power_is_what_simulation_says():
    """Within 10 % of 80 %."""
    trials = 1000
    for gain in (0.8, 0.3):
        n = needed(gain, 1.0, 1000).number
        share = verdicts.decided(
            trials,
            n,
            lambda g, n=n, d=gain: verdicts.of_texts(verdicts.normal(g, n) + d),
        )
        assert 0.72 <= share <= 0.88
    n = needed_questions(0.1, 0.3, 1000).number
    split = np.random.default_rng(0).multinomial(n, [0.2, 0.1, 0.7], size=trials)
    share = np.mean([PairedAccuracy.split(a, b) < 0.05 for a, b, _ in split])
    assert 0.72 <= share <= 0.88
    assert share == pytest.approx(power_of_mcnemar(0.1, 0.3, n), abs=0.045)


def test_power_grows_far_beyond_what_scipy_has_tails_for():
    powers = [power_of(shift, 400, 401) for shift in np.linspace(0, 200, 60)]
    assert powers[0] == pytest.approx(0.05, abs=2e-3)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(powers))
    assert powers[-1] == pytest.approx(1)


def test_no_number_of_texts_replaces_runs():
    assert needed(0.01, 0.1, 50, others=0.01) is None
    some = needed(0.01, 0.1, 50, others=0.002)
    assert some.number > needed(0.01, 0.1, 50).number
    assert some.at_least < some.number < some.at_most
    with pytest.raises(ValueError, match="positive difference"):
        needed(0.0, 0.1, 50)


def test_mcnemar_by_enumeration():
    """Of 12 questions, every way that they can come out."""
    won, lost, total = 0.35, 0.1, 0.0
    for a in range(13):
        for b in range(13 - a):
            ways = math.comb(12, a) * math.comb(12 - a, b)
            p = won**a * lost**b * (1 - won - lost) ** (12 - a - b)
            total += ways * p * (PairedAccuracy.split(a, b) < 0.05)
    found = power_of_mcnemar(won - lost, won + lost, 12)
    assert found == pytest.approx(total, abs=1e-9)


def test_pass_at_k_is_the_mean_over_choices():
    answers = [[0, 0, 1, 0, 1], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    right = np.array([sum(each) for each in answers])
    for k in range(1, 6):
        said = [
            np.mean([max(s) for s in itertools.combinations(a, k)]) for a in answers
        ]
        assert pass_at(k, right, np.full(3, 5)) == pytest.approx(said)
    with pytest.raises(ValueError, match="pass@6 needs 6 answers"):
        pass_at(6, right, np.full(3, 5))


def test_what_more_answers_would_take_away():
    """Questions of which each has a chance of its own."""
    dice = np.random.default_rng(0)
    chances = dice.random(40)
    drawn = (dice.random((2000, 40, 4)) < chances[:, None]).astype(float)
    spread = drawn.mean((1, 2)).std()
    errors = [repeat_stderr([*each]) for each in drawn[:200]]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.08)
    assert repeat_stderr([np.array([1.0])]) == 0


def test_holm_is_a_closed_test():
    """A null is refused where Bonferroni refuses every set of nulls that holds it."""
    dice = np.random.default_rng(0)
    for _ in range(200):
        p = (dice.random(4) ** 3).tolist()
        levels = holm_levels(p, 0.05)
        for place, level in enumerate(levels):
            sets = (
                some
                for size in range(1, 5)
                for some in itertools.combinations(range(4), size)
                if place in some
            )
            refused = all(min(p[n] for n in some) < 0.05 / len(some) for some in sets)
            assert (level > 0) is refused
            assert (holm_adjusted(p)[place] < 0.05) is refused


def test_groups_are_the_largest_sets_that_nothing_tells_apart():
    dice = np.random.default_rng(1)
    for _ in range(50):
        pairs = [frozenset(each) for each in itertools.combinations("ABCDEF", 2)]
        apart = {pair for pair in pairs if dice.random() < 0.4}
        alike = [
            {*some}
            for size in range(1, 7)
            for some in itertools.combinations("ABCDEF", size)
            if not any(pair <= {*some} for pair in apart)
        ]
        largest = [some for some in alike if not any(some < other for other in alike)]
        found = groups("ABCDEF", apart)
        assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
