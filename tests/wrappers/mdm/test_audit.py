"""What other evaluation programs of masked diffusion models compute instead.

The numbers of docs/reproducing.md: a program's rule in our own words, and its effect.
"""

import math
from collections import Counter
from itertools import permutations, product

import pytest
import torch

from lm_latent_eval.wrappers.mdm.targets import TargetTokens
from tests.wrappers.mdm import tiny

TEXT_WORDS = [w for w in range(len(tiny.VOCABULARY)) if w != tiny.MASK]


@pytest.mark.parametrize(("length", "deviation"), [(4, 1 / 12), (2, 1 / 8)])
def test_counts_rounded_half_to_even(length, deviation):
    """At batch size 8 the score is off by 8.3 % of a linear loss's range, or 12.5 %."""
    shares = Counter(
        (round(first + n * length / 8) - 1) % length + 1
        for first in range(1, length + 1)
        for n in range(8)
    )
    mean = sum(count * n for count, n in shares.items()) / shares.total()
    uniform = (1 + length) / 2
    assert (mean - uniform) / (length - 1) == pytest.approx(deviation)


def test_bernoulli_masks_and_a_full_mask_that_is_never_drawn():
    """1{masked} / t, t uniform on (0.001, 1); counts in proportion to 1 / l below L."""
    least = 1e-3
    deviation = math.sqrt((math.log(1 / least) / (1 - least) - 1) / 128)
    assert deviation == pytest.approx(0.215, abs=5e-4)
    for length, share in ((2, 0.75), (16, 0.955)):
        harmonic = math.fsum(1 / count for count in range(1, length + 1))
        # A loss of one nat a masked token: the truth is L.
        found = harmonic * (length - 1) / (harmonic - 1 / length)
        assert found / length == pytest.approx(share, abs=5e-4)


@pytest.fixture(scope="module")
def reader():
    return tiny.denoiser()


@pytest.mark.parametrize("length", [1, 2])
def test_masses_of_ends_that_are_shown_and_of_best_orders(reader, length):
    """Texts of each length total one, so all have mass 2; of best orders 1.18."""
    best = exact = 0.0
    for text in product(TEXT_WORDS, repeat=length):
        shown = TargetTokens((), text, (tiny.END,))
        exact += math.exp(tiny.Truth(reader, shown).exact)
        truth = tiny.Truth(reader, TargetTokens((), text))
        best += math.exp(max(map(truth.log_p, permutations(range(length)))))
    assert exact == pytest.approx(1, abs=1e-10)
    assert best == pytest.approx((1, 1.18)[length - 1], abs=5e-3)


def test_guidance_changes_what_is_scored(reader):
    """One token after a context, guidance of 1: from 0.97 nats less to 0.29 more."""
    tokens, hidden = torch.tensor([[5, 8, 7, tiny.MASK]]), torch.full((1, 4), tiny.MASK)
    scores, free = (reader.scores(each)[:, 3] for each in (tokens, hidden))
    plain, guided = (reader.normalised(s)[0] for s in (scores, 2 * scores - free))
    moved = (guided - plain)[TEXT_WORDS]
    assert float(moved.min()) == pytest.approx(-0.97, abs=5e-3)
    assert float(moved.max()) == pytest.approx(0.29, abs=5e-3)
