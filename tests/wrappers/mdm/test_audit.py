"""What other evaluation programs of masked diffusion models compute instead.

The numbers of docs/reproducing.md. Each program's rule is written down here in our own
words, and its effect computed.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch

from lm_latent_eval.wrappers.mdm import estimators, orders
from lm_latent_eval.wrappers.mdm.targets import TargetTokens
from lm_latent_eval.wrappers.mdm.unmasking import Unmasking
from tests.wrappers.mdm import tiny

TEXT_WORDS = [w for w in range(len(tiny.VOCABULARY)) if w != tiny.MASK]


def stratified_counts(length: int, batch: int, first: int) -> list[int]:
    """Mask counts of one batch: evenly spaced, rounded half to even, and wrapped."""
    steps = [first + n * length / batch for n in range(batch)]
    return [(round(step) - 1) % length + 1 for step in steps]


@pytest.mark.parametrize(("length", "deviation"), [(4, 1 / 12), (2, 1 / 8)])
def test_counts_rounded_half_to_even(length, deviation):
    """At batch size 8 the score is off by 8.3 % of a linear loss's range, or 12.5 %."""
    shares = Counter()
    for first in range(1, length + 1):
        shares.update(stratified_counts(length, 8, first))
    total = sum(shares.values())
    mean = sum(count * n for count, n in shares.items()) / total
    uniform = (1 + length) / 2
    assert (mean - uniform) / (length - 1) == pytest.approx(deviation)
    if length == 4:
        assert shares[2] == shares[4] == 3 * shares[1] == 3 * shares[3]
    # With as many in a batch as there are tokens it is right: the score depends on it.
    assert Counter(stratified_counts(4, 4, 2)) == dict.fromkeys(range(1, 5), 1)
    # Ours: every count as often as any other, over u.
    ours = torch.cat(
        [estimators.mask_counts(length, 8, (n + 0.5) / 64) for n in range(64)]
    )
    assert ours.bincount()[1:].tolist() == [len(ours) // length] * length


def test_bernoulli_masks_of_one_token():
    """1{masked} / t, t uniform on (0.001, 1), has E 1 / t - 1; ours reads one pass."""
    least = 1e-3
    deviation = math.sqrt((math.log(1 / least) / (1 - least) - 1) / 128)
    assert deviation == pytest.approx(0.215, abs=5e-4)
    target, rule = TargetTokens((5,), (6,)), Unmasking("confidence")
    ours = tiny.ask(tiny.denoiser(), target, orders.log_p_path(1, rule))
    assert ours.passes == 1, "which is exact"


@pytest.mark.parametrize(("length", "share"), [(2, 0.75), (16, 0.955)])
def test_a_full_mask_that_is_never_drawn(length, share):
    """Counts in proportion to 1 / l below L, times the harmonic number of L."""
    harmonic = math.fsum(1 / count for count in range(1, length + 1))
    below = harmonic - 1 / length
    # A loss of one nat a masked token: the truth is L.
    found = harmonic * sum(1 / count / below * count for count in range(1, length))
    assert found / length == pytest.approx(share, abs=5e-4)


@pytest.fixture(scope="module")
def reader():
    return tiny.denoiser()


def total(reader, targets, score):
    """Sum of exp(score) over targets."""
    return math.fsum(math.exp(score(tiny.Truth(reader, each))) for each in targets)


def texts(length: int, after=()):
    pairs = [(a, b) for a in TEXT_WORDS for b in TEXT_WORDS]
    words = [(a,) for a in TEXT_WORDS] if length == 1 else pairs
    return [TargetTokens((), each, after) for each in words]


def test_an_end_that_is_shown_is_not_paid(reader):
    """Texts of each length total one: those of two lengths together have mass 2."""
    for length in (1, 2):
        shown = texts(length, after=(tiny.END,))
        assert total(reader, shown, lambda t: t.exact) == pytest.approx(1, abs=1e-10)


def test_the_best_order_after_seeing_the_text_has_too_much_mass(reader):
    """Over all texts of two tokens: 1.18 instead of 1."""

    def best(truth):
        return max(truth.log_p(order) for order in permutations(range(2)))

    mass = total(reader, texts(2), best)
    assert mass == pytest.approx(1.18, abs=5e-3)
    assert total(reader, texts(2), lambda t: t.exact) == pytest.approx(1, abs=1e-10)


def test_guidance_changes_what_is_scored(reader):
    """One token after a context, guidance of 1: from 0.97 nats less to 0.29 more."""
    tokens, hidden = torch.tensor([[5, 8, 7, tiny.MASK]]), torch.full((1, 4), tiny.MASK)
    scores, free = (reader.scores(each)[:, 3] for each in (tokens, hidden))
    plain, guided = (reader.normalised(s)[0] for s in (scores, 2 * scores - free))
    moved = (guided - plain)[TEXT_WORDS]
    assert float(moved.min()) == pytest.approx(-0.97, abs=5e-3)
    assert float(moved.max()) == pytest.approx(0.29, abs=5e-3)
