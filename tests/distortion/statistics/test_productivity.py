import math
from collections import Counter
from itertools import product

import numpy as np
import pytest

from lm_latent_eval.distortion.statistics import (
    ProductivityCurve,
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
    found = 0.0
    for events, p in samples(num_events):
        found += p * ProductivityCurve.of(events).productivity[-1]
    assert found == pytest.approx(expected_unseen(LOPSIDED, num_events - 1), rel=1e-12)
    excess = sum(p**2 * (1 - p) ** (num_events - 1) for p in LOPSIDED)
    unseen = expected_unseen(LOPSIDED, num_events)
    assert found - unseen == pytest.approx(excess, rel=1e-12)
    assert excess <= 1 / num_events


def zipf(num_types=3000):
    p = 1 / np.arange(1, num_types + 1)
    return p / p.sum()


def test_the_error_on_a_known_distribution():
    p, num_events, trials = zipf(), 1000, 2000
    counts = np.random.default_rng(0).multinomial(num_events, p, size=trials)
    unseen = ((counts == 0) * p).sum(-1)
    found = (counts == 1).sum(-1) / num_events

    once, twice = ((counts == m).sum(-1).tolist() for m in (1, 2))
    pairs = zip(once, twice, strict=True)
    claimed = [productivity_stderr(num_events, *pair) for pair in pairs]
    actual = (found - unseen).std(ddof=1)
    claimed = math.sqrt(np.square(claimed).mean())
    tolerance = 5 / math.sqrt(2 * trials)  # of a standard deviation, relative
    assert claimed / actual == pytest.approx(1, abs=tolerance)
    binomial = np.sqrt(found * (1 - found) / num_events).mean()
    assert abs(binomial / actual - 1) > tolerance, "premise: another formula fails"
    covered = np.abs(found - unseen) < 1.96 * claimed
    assert covered.mean() == pytest.approx(0.95, abs=5 * math.sqrt(0.0475 / trials))


# The curve


def test_curve_by_counting_every_beginning():
    events = np.random.default_rng(1).choice(300, size=700, p=zipf(300)).tolist()

    curve = ProductivityCurve.of(iter(events))

    assert curve.sample_sizes == (1, 2, 5, 10, 20, 50, 100, 200, 500, 700)
    for i, size in enumerate(curve.sample_sizes):
        seen = Counter(events[:size])
        types = Counter(seen.values())
        assert curve.num_types[i] == len(seen)
        assert curve.num_hapax[i] == types[1]
        assert curve.productivity[i] == types[1] / size
        expected = productivity_stderr(size, types[1], types[2])
        assert curve.stderr[i] == expected


def test_refusals():
    with pytest.raises(ValueError, match="no events"):
        ProductivityCurve.of([])
    with pytest.raises(ValueError, match="2 types once and 1 twice are not among 3"):
        productivity_stderr(3, 2, 1)
    with pytest.raises(ValueError, match="num_events must be a whole number"):
        productivity_stderr(0, 0, 0)
