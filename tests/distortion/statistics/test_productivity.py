import math
from collections import Counter
from itertools import count, pairwise, product

import numpy as np
import pytest

from lm_latent_eval.distortion.statistics import (
    ProductivityCurve,
    good_turing,
    potential_productivity,
    productivity_stderr,
)

LOPSIDED = (0.6, 0.3, 0.1)


def samples(num_events):
    """Return every sample of a small distribution, with its probability."""
    for events in product(range(3), repeat=num_events):
        yield events, math.prod(LOPSIDED[event] for event in events)


def expected_unseen(probabilities, num_events):
    p = np.array(probabilities)
    return (p * (1 - p) ** num_events).sum()


# The estimate


@pytest.mark.parametrize("num_events", [1, 2, 3, 6])
def test_expectation_by_enumeration(num_events):
    """It is what one event less leaves unseen; over what N leave by p^2 (1-p)^(N-1)."""
    found = sum(
        p * potential_productivity(Counter(events)) for events, p in samples(num_events)
    )
    assert found == pytest.approx(expected_unseen(LOPSIDED, num_events - 1), rel=1e-12)
    excess = sum(p**2 * (1 - p) ** (num_events - 1) for p in LOPSIDED)
    unseen = expected_unseen(LOPSIDED, num_events)
    assert found - unseen == pytest.approx(excess, rel=1e-12)
    assert excess <= 1 / num_events


def zipf(num_types=3000):
    p = 1 / np.arange(1, num_types + 1)
    return p / p.sum()


def test_estimate_and_error_on_a_known_distribution():
    p, num_events, trials = zipf(), 1000, 2000
    counts = np.random.default_rng(0).multinomial(num_events, p, size=trials)
    unseen = ((counts == 0) * p).sum(-1)
    found = np.array([potential_productivity(row[row > 0].tolist()) for row in counts])

    stderr = found.std(ddof=1) / math.sqrt(trials)
    assert abs(found.mean() - expected_unseen(p, num_events - 1)) < 4 * stderr
    stderr = unseen.std(ddof=1) / math.sqrt(trials)
    assert abs(unseen.mean() - expected_unseen(p, num_events)) < 4 * stderr

    once, twice = ((counts == m).sum(-1).tolist() for m in (1, 2))
    claimed = [
        productivity_stderr(num_events, a, b) for a, b in zip(once, twice, strict=True)
    ]
    actual = (found - unseen).std(ddof=1)
    claimed = math.sqrt(np.square(claimed).mean())
    tolerance = 5 / math.sqrt(2 * trials)  # of a standard deviation, relative
    assert claimed / actual == pytest.approx(1, abs=tolerance)
    binomial = np.sqrt(found * (1 - found) / num_events).mean()
    assert abs(binomial / actual - 1) > tolerance, "premise: another formula fails"
    covered = np.abs(found - unseen) < 1.96 * claimed
    assert covered.mean() == pytest.approx(0.95, abs=5 * math.sqrt(0.0475 / trials))


def test_good_turing_by_hand():
    counts = [1, 1, 1, 2, 2, 4]  # 11 events
    assert potential_productivity(counts) == pytest.approx(3 / 11)
    assert good_turing(counts, 1) == pytest.approx(2 / 11 * 2 / 3)
    assert good_turing(counts, 2) == 0, "no type occurred three times"
    assert good_turing(counts, 4) == 0
    mapping = dict(zip("abcdef", counts, strict=True))
    assert potential_productivity(mapping) == potential_productivity(iter(counts))
    assert good_turing(mapping, 1) == good_turing(iter(counts), 1)


def test_good_turing_shares_out_what_was_seen():
    """Types of m times have N_m P(m) together; over all m, the rest of 1."""
    counts = np.random.default_rng(0).multinomial(500, zipf(400))
    counts = counts[counts > 0].tolist()
    types = Counter(counts)
    seen = sum(number * good_turing(counts, m) for m, number in types.items())
    # what goes to m + 1 where no type has m is given to none
    lost = sum(
        (m + 1) * types[m + 1] / 500
        for m in range(1, max(types))
        if types[m] == 0 < types[m + 1]
    )
    assert lost > 0, "premise"
    assert seen + lost == pytest.approx(1 - potential_productivity(counts))


# The curve


def test_curve_by_counting_every_beginning():
    events = np.random.default_rng(1).choice(300, size=700, p=zipf(300)).tolist()

    curve = ProductivityCurve.of(iter(events), range(1, 701))

    assert curve.sample_sizes == tuple(range(1, 701))
    for i, size in enumerate(curve.sample_sizes):
        seen = Counter(events[:size])
        types = Counter(seen.values())
        assert curve.num_types[i] == len(seen)
        assert curve.num_hapax[i] == types[1]
        assert curve.productivity[i] == potential_productivity(seen)
        expected = productivity_stderr(size, types[1], types[2])
        assert curve.stderr[i] == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, (1,)),
        (4, (1, 2, 4)),
        (100, (1, 2, 5, 10, 20, 50, 100)),
        (1234, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1234)),
    ],
)
def test_round_sizes_and_the_end(size, expected):
    curve = ProductivityCurve.of(range(size))
    assert curve.sample_sizes == curve.num_types == curve.num_hapax == expected
    assert set(curve.productivity) == {1}


def test_nothing_is_read_beyond_the_last_size():
    assert ProductivityCurve.of(count(), [3, 7]).num_types == (3, 7)


def test_events_are_whatever_can_be_told_apart():
    curve = ProductivityCurve.of(pairwise("ababc"), [4])
    assert (curve.num_types, curve.num_hapax) == ((3,), (2,))  # ab twice, ba, bc


def test_refusals():
    for counts, message in [
        ([], "no counts"),
        ({}, "no counts"),
        ([1, 0], "a count must be a whole number, at least 1; got 0"),
        ([1.5], "a count must be a whole number"),
    ]:
        with pytest.raises(ValueError, match=message):
            potential_productivity(counts)
        with pytest.raises(ValueError, match=message):
            good_turing(counts, 1)
    with pytest.raises(ValueError, match="no type occurred 2 times"):
        good_turing([1, 3], 2)
    with pytest.raises(ValueError, match="m must be a whole number"):
        good_turing([1, 3], 0)
    with pytest.raises(ValueError, match="no events"):
        ProductivityCurve.of([])
    with pytest.raises(ValueError, match="no events"):
        ProductivityCurve.of([], [1])
    with pytest.raises(ValueError, match="2 events, fewer than the sample size 3"):
        ProductivityCurve.of("ab", [1, 3])
    for sizes in ([], [2, 1], [1, 1]):
        with pytest.raises(ValueError, match="must be ascending"):
            ProductivityCurve.of("ab", sizes)
    with pytest.raises(ValueError, match="a sample size must be a whole number"):
        ProductivityCurve.of("ab", [0])
    with pytest.raises(ValueError, match="2 types once and 1 twice are not among 3"):
        productivity_stderr(3, 2, 1)
    with pytest.raises(ValueError, match="num_events must be a whole number"):
        productivity_stderr(0, 0, 0)
