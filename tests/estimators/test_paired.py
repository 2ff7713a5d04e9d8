"""Paired comparisons, power and many comparisons: by simulation, and by other ways."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from benchmarks import verdicts
from lm_latent_eval.estimators.paired import (
    FEWEST_TEXTS,
    FURTHEST,
    PairedAccuracy,
    PairedDifference,
    groups,
    wilson,
)
from lm_latent_eval.estimators.power import needed, needed_questions, power_of_mcnemar
from lm_latent_eval.estimators.standard_errors import pooled_degrees


def compared(differences, units, draws=0.0, **more):
    d = torch.as_tensor(differences, dtype=torch.float64)
    return PairedDifference.of(
        d, torch.as_tensor(units), draws_stderr=torch.full_like(d, draws), **more
    )


def test_the_errors_are_what_they_say():
    """Texts are drawn with lengths, a difference each, and Monte Carlo noise."""
    generator = torch.Generator().manual_seed(0)
    rate, noise, count, trials, found = -0.02, 0.4, 150, 400, []
    for _ in range(trials):
        units = torch.randint(20, 200, (count,), generator=generator)
        true = rate * units + 0.05 * units * torch.randn(count, generator=generator)
        seen = true + noise * torch.randn(count, generator=generator)
        found.append(compared(seen, units, noise))
    spread = torch.tensor([each.value for each in found]).std().item()
    mean = sum(each.stderr for each in found) / trials
    assert mean == pytest.approx(spread, rel=0.12), "of 400: 3.5 of its own errors"
    covered = sum(each.interval[0] <= rate <= each.interval[1] for each in found)
    assert 0.91 <= covered / trials <= 0.98
    draws = [each.draws_stderr for each in found]
    texts = [each.texts_stderr for each in found]
    assert max(draws) < min(texts), "premise: the parts are told apart"
    whole = map(math.hypot, draws, texts)
    assert [each.stderr for each in found] == pytest.approx([*whole])


def test_accuracies_are_compared_by_the_questions_that_differ():
    a = torch.tensor([True] * 30 + [False] * 10)
    b = torch.tensor([True] * 22 + [False] * 8 + [True] + [False] * 9)
    found = PairedAccuracy.of(a, b)
    assert found.accuracy == (pytest.approx(0.75), pytest.approx(23 / 40))
    assert (found.only_a, found.only_b) == (8, 1)
    two_sided = 2 * sum(math.comb(9, k) for k in (0, 1)) / 2**9
    assert found.p_value == pytest.approx(two_sided), "McNemar's exact test"
    assert found.stderr == pytest.approx(math.sqrt(10 - 49 / 42) / 42)
    for end, errors in zip(found.interval_at(0.95), (1.96, -1.96), strict=True):
        assert found._score(end) == pytest.approx(errors, abs=1e-3)
    assert PairedAccuracy.of(a, a).p_value == 1.0
    every = PairedAccuracy.of(a[:8], ~a[:8])
    assert every.p_value == pytest.approx(2 / 2**8)
    assert every.stderr > 0.1, "eight of eight is not certain"
    assert wilson(8, 8) == pytest.approx((0.6756, 1.0), abs=1e-4)


def verdict(kind, generator, texts):
    if kind in ("runs", "lengths"):
        return getattr(verdicts, f"of_{kind}")(generator, texts)
    return verdicts.of_texts(verdicts.KINDS[kind](generator, texts))


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        *itertools.product(verdicts.KINDS, (10, 30)),
        *itertools.product(("normal", "log-normal"), (9, 1000)),
        *(("runs", 10), ("runs", 100)),
        ("lengths", 10),
    ],
)
def test_verdicts_are_seldom_false(kind, texts):
    """At most 6 %, and what 2,000 trials leave open; of two runs a side as well."""
    trials = 2000
    false = verdicts.decided(trials, texts, lambda g: verdict(kind, g, texts))
    assert false <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / trials)
    assert (false == 0) == (texts < FEWEST_TEXTS)


@pytest.mark.parametrize("texts", [10, 12, 15, 300])
def test_what_differs_is_found_nearly_as_often_as_by_t(texts):
    """Of ten texts 0.87, and what 2,000 pairs of verdicts leave open."""
    assert verdicts.power(texts, 2000) > 0.87 - 3 * 0.01


def test_the_end_towards_a_tail_is_further():
    d = np.exp(np.random.default_rng(0).normal(size=40))
    low, high = compared(d, np.ones(40)).interval
    mean = d.mean()
    assert high - mean > 1.5 * (mean - low)
    turned = compared(-d, np.ones(40)).interval
    assert turned == pytest.approx((-high, -low))
    reach = stdtrit(39, 0.975) * d.std(ddof=1) / math.sqrt(40)
    assert 0.9 * reach < mean - low < reach, "what is added there is taken off here"
    assert high - mean <= FURTHEST * reach
    for shift, why in ((1.2, "differ much, and to the other side"), (0.5, "turn it")):
        assert why in compared(d - mean - shift * reach, np.ones(40)).undecided
    few = compared(d[:9], np.ones(9))
    assert (few.interval, few.p_value) == ((-math.inf, math.inf), 1.0)


def test_unequal_clusters_have_the_moments_of_their_residuals():
    """The same traces by matrices."""
    u = np.array([1.0, 2.0, 2.0, 7.0, 20.0])
    residue = np.eye(5) - np.outer(u, np.ones(5)) / u.sum()
    product = residue.T @ residue @ np.diag(u**2)
    degrees = np.trace(product) ** 2 / np.trace(product @ product)
    d = np.array([0.3, -1.0, 0.5, 2.0, -4.0])
    found = compared(d, u, clusters="abcde")
    assert found.degrees == pytest.approx(degrees)
    squares = ((residue @ d) ** 2).sum() * (u**2).sum() / np.trace(product)
    assert found.texts_stderr == pytest.approx(math.sqrt(squares) / u.sum())
    one = compared([0.3, -1.0, 0.0], [10, 10, 0], clusters="aab")
    assert one.stderr == math.inf, "all that counts is in one cluster"


@pytest.mark.parametrize("equal", [True, False])
def test_false_verdicts_with_clusters_of_ten(equal):
    """At most 6 %, and of those that know of none far more."""
    trials = 600
    false, unaware = (
        verdicts.decided(
            trials, 150, lambda g, a=aware: verdicts.of_clusters(g, 150, equal, aware=a)
        )
        for aware in (True, False)
    )
    assert false <= 0.06 + 2 * math.sqrt(0.06 * 0.94 / trials)
    assert unaware > 0.2


@pytest.mark.parametrize("more", [{}, {"runs_stderr": 0.05, "runs_degrees": 3.0}])
def test_a_p_value_is_where_the_interval_ends(more):
    d = np.random.default_rng(3).exponential(size=15) - 0.4
    found = compared(d, np.ones(15), **more)
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


def test_runs_that_are_few_take_more_texts():
    """Three runs a side, whose errors have two degrees of freedom each."""
    dice, runs, trials = np.random.default_rng(0), 3, 1000
    of_runs = 0.02 * math.sqrt(2 / runs)
    n = needed(0.1, 1.0, 10_000, runs=(of_runs, 2 * (runs - 1.0))).number
    assert n > needed(0.1, 1.0, 10_000, missed=of_runs).number
    decided = 0
    for _ in range(trials):
        a, b = dice.normal(0, 0.02, (2, runs))
        parts = [(x.std(ddof=1) / math.sqrt(runs), runs - 1.0) for x in (a, b)]
        found = compared(
            dice.normal(0.1 + a.mean() - b.mean(), 1, n),
            np.ones(n),
            runs_stderr=math.hypot(*(error for error, _ in parts)),
            runs_degrees=pooled_degrees(parts),
        )
        decided += found.undecided is None and found.value > 0
    assert 0.72 <= decided / trials <= 0.88


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


def subsets(of):
    sizes = range(1, len(of) + 1)
    return [some for n in sizes for some in itertools.combinations(of, n)]


def accuracies(b, c, number):
    """A alone answers b questions rightly, B alone c, neither the others."""
    place = torch.arange(number)
    return PairedAccuracy.of(place < b, (b <= place) & (place < b + c))


def test_a_verdict_and_its_interval_never_disagree():
    """Over 10,000 random tables: p is below the level where 0 is outside."""
    dice = np.random.default_rng(0)

    def tables():
        for trial in range(3000):
            number = int(dice.integers(2, 60))
            d = dice.standard_t(dice.integers(2, 9), size=number) + dice.random()
            yield compared(d if trial % 2 else np.exp(d), dice.integers(1, 99, number))
        for _ in range(7000):
            number = int(dice.integers(1, 300))
            b = int(dice.integers(0, min(number, 40) + 1))
            yield accuracies(b, int(dice.integers(0, min(number - b, 20) + 1)), number)

    refused = 0
    for found, level in zip(tables(), itertools.cycle((0.05, 0.05 / 325))):
        low, high = found.interval_at(1 - level)
        assert (found.p_value < level) is (low > 0 or high < 0)
        refused += low > 0 or high < 0
    assert refused > 1000, "premise"


@pytest.mark.parametrize("number", [10, 30])
def test_intervals_of_pairs_hold(number):
    """By enumeration of what questions can come out as, one true difference each."""
    ends = {
        (b, c): accuracies(b, c, number).interval_at(0.95)
        for b in range(number + 1)
        for c in range(number + 1 - b)
    }
    shares = []
    for differ in (0.1, 0.3, 0.6):
        for gain in (0.0, 0.5 * differ, 0.9 * differ):
            p = [(differ + gain) / 2, (differ - gain) / 2, 1 - differ]
            held = 0.0
            for (b, c), (low, high) in ends.items():
                rest = number - b - c
                ways = math.comb(number, b) * math.comb(number - b, c)
                mass = ways * p[0] ** b * p[1] ** c * p[2] ** rest
                held += mass * (low <= gain <= high)
            shares.append(held)
    assert min(shares) > 0.91 and np.mean(shares) > 0.95


def test_groups_are_the_largest_sets_that_nothing_tells_apart():
    dice = np.random.default_rng(1)
    for _ in range(50):
        pairs = [frozenset(each) for each in itertools.combinations("ABCDEF", 2)]
        apart = {pair for pair in pairs if dice.random() < 0.4}
        sets = [{*some} for some in subsets("ABCDEF")]
        alike = [some for some in sets if not any(pair <= some for pair in apart)]
        largest = [some for some in alike if not any(some < other for other in alike)]
        found = groups("ABCDEF", apart)
        assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
