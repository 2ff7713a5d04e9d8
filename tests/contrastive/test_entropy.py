import math
from functools import partial

import pytest
import torch

from lm_latent_eval.contrastive import (
    Rate,
    contrastive_entropy,
    contrastive_levels,
    contrastive_ratio,
    contrastive_ratio_stderr,
    contrastive_stderr,
    mean_entropy,
    mean_ratio,
    verdict,
)
from lm_latent_eval.estimators import mean_stderr, ratio_stderr


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


CLEAN = doubles(-10.0, -24.0, -7.5)
MILD = doubles(-12.0, -25.0, -9.0)  # differences 2, 1, 1.5
STRONG = doubles(-13.0, -32.0, -14.5)  # 3, 8, 7
WORDS = torch.tensor([4, 9, 2])

PAPER = {  # model -> contrastive entropies in bits at 10, 30 and 50 %, and two ratios
    "3-gram": (1.993, 4.179, 5.279, 2.096, 2.649),
    "5-gram": (2.021, 4.198, 5.308, 2.077, 2.626),
    "RNN": (2.546, 5.339, 6.609, 2.097, 2.596),
    "sRNN-75(50)": (1.978, 3.961, 6.477, 2.002, 3.275),
    "sRNN-75(10)": (2.339, 6.759, 11.01, 2.890, 5.257),
    "sRNN-150(10)": (2.547, 7.581, 12.925, 2.976, 5.074),
}


# By hand


def test_entropies_and_errors_over_sentences():
    copies = torch.stack([MILD, STRONG]).expand(2, 2, 3)
    found = contrastive_entropy(CLEAN, copies, WORDS)
    assert found.tolist() == [[4.5 / 15, 18 / 15]] * 2
    assert contrastive_entropy(CLEAN, MILD, 3).item() == 1.5, "a sentence"
    # Of a sentence: 2, 1, 1.5 around 1.5, so a variance of 0.25, over 3.
    a_sentence = contrastive_stderr(CLEAN, MILD, 3).item()
    assert a_sentence == pytest.approx(math.sqrt(0.25 / 3))
    # Of a word the rate is 0.3: residuals 2 - 1.2, 1 - 2.7, 1.5 - 0.6.
    squares = (0.8**2 + 1.7**2 + 0.9**2) * 3 / 2
    a_word = contrastive_stderr(CLEAN, MILD, WORDS).item()
    assert a_word == pytest.approx(math.sqrt(squares) / 15)
    # The ratio is 4: residuals 3 - 8, 8 - 4, 7 - 6.
    squares = (25 + 16 + 1) * 3 / 2
    of_ratio = contrastive_ratio_stderr(CLEAN, STRONG, MILD).item()
    assert of_ratio == pytest.approx(math.sqrt(squares) / 4.5)
    # A total alone spreads evenly.
    evenly = contrastive_stderr(CLEAN, MILD, torch.tensor([5, 5, 5])).item()
    assert contrastive_stderr(CLEAN, MILD, 15) == pytest.approx(evenly)
    one = doubles(-1.0)
    for unknown in (
        contrastive_stderr(one, one - 1, 1),
        contrastive_ratio_stderr(one, one - 2, one - 1),
        mean_stderr(one),
    ):
        assert unknown == math.inf


def test_levels_by_hand():
    copies = {
        0.5: torch.stack([STRONG, STRONG - 1]),
        0.1: torch.stack([MILD, MILD - 0.5]),
    }

    low, high = contrastive_levels(CLEAN, copies, WORDS)

    assert (low.level, high.level) == (0.1, 0.5)
    assert low.entropy.value == pytest.approx((4.5 + 6) / 2 / 15)
    assert low.ratio.value == 1 and low.ratio.stderr == 0
    assert low.ratio.replicate_stderr == pytest.approx(0, abs=1e-12)
    assert high.entropy.value == pytest.approx((18 + 21) / 2 / 15)
    assert high.ratio.value == pytest.approx(39 / 10.5)
    assert high.entropy.stderr == pytest.approx(
        contrastive_stderr(CLEAN, STRONG - 0.5, WORDS).item()
    )
    # replicates: 18/15 and 21/15, half their distance apart from the mean
    assert high.entropy.replicate_stderr == pytest.approx(1.5 / 15)
    # residuals of the ratio: 18 - 4.5 R and 21 - 6 R, with R = 39/10.5
    off = 18 - 4.5 * 39 / 10.5
    assert high.ratio.replicate_stderr == pytest.approx(2 * abs(off) / 10.5)
    nats, bits = high.entropy, high.entropy.bits()
    for name in ("value", "stderr", "replicate_stderr"):
        scaled = getattr(nats, name) / math.log(2)
        assert getattr(bits, name) == pytest.approx(scaled)
    # The error of a rate is the one that is known.
    assert nats.rate() == Rate(nats.value, nats.replicate_stderr)
    one = mean_entropy(CLEAN, MILD[None], WORDS)
    assert one.rate() == Rate(one.value, contrastive_stderr(CLEAN, MILD, WORDS).item())

    found = contrastive_levels(CLEAN, {1: MILD, 2: STRONG}, 3, baseline=2)
    assert [each.ratio.value for each in found] == [0.25, 1.0]


@pytest.mark.parametrize(("model", "row"), PAPER.items(), ids=PAPER)
def test_ratios_of_the_paper(model, row):
    low, middle, high, *expected = row
    found = contrastive_ratio(doubles(middle, high), torch.tensor(low)).tolist()
    if model == "sRNN-75(10)":  # its table 3 does not follow from its table 2
        assert found.pop() == pytest.approx(4.707, abs=0.001) != expected.pop()
    assert found == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(
    ("entropy", "ratio", "expected"),
    [
        (2.1, 3.0, "superior"),
        (2.1, 2.91, "superior"),
        (2.1, 2.90, "scaling"),
        (1.9, 2.91, "indeterminate"),
        (1.9, 2.90, "inferior"),
        (2.0, 3.0, "indeterminate"),  # an equal entropy is not a higher one
    ],
)
def test_table_of_verdicts(entropy, ratio, expected):
    assert verdict(entropy, ratio, 2.0, 3.0) == expected
    assert verdict(entropy, ratio - 6.0, 2.0, -3.0) == expected, "3 % below, too"


# Exactly


def test_squared_error_is_unbiased_by_enumeration():
    """Over every sample of 3 of a population of 3, the error of the mean is right."""
    population = doubles(0.5, -1.0, 4.0)
    clean, samples = doubles(0, 0, 0), torch.cartesian_prod(*[population] * 3)
    entropies = contrastive_entropy(clean, -samples, 3)
    errors = contrastive_stderr(clean, -samples, 3)
    assert errors.square().mean() == pytest.approx(entropies.var(correction=0).item())
    assert mean_stderr(samples) == pytest.approx(errors)


def test_errors_cover():
    """Simulated sentences: the truth is within two errors 95 % of the time."""
    generator = torch.Generator().manual_seed(0)
    trials, size = 2000, 200

    def normal():
        return torch.randn(trials, size, generator=generator, dtype=torch.float64)

    words = 5 + 2 * normal().abs()
    low = 0.5 * words + normal()
    high = 2 * low + normal()

    for numerator, denominator, truth in ((low, words, 0.5), (high, low, 2.0)):
        rate = numerator.sum(-1) / denominator.sum(-1)
        error = ratio_stderr(numerator, denominator)
        covered = ((rate - truth).abs() < 1.96 * error).double().mean().item()
        spread = math.sqrt(0.95 * 0.05 / trials)
        assert abs(covered - 0.95) < 4 * spread


ONE, TWO = doubles(1.0), doubles(1.0, 2.0)
COPIES = {1: MILD, 2: torch.stack([MILD, MILD])}
by_another = partial(contrastive_levels, baseline=0.2)
REFUSED = [
    (contrastive_entropy, (doubles(1.0, math.nan), TWO, 2), r"log_scores\[1\] is nan"),
    (contrastive_entropy, (TWO, doubles([1, -math.inf]), 2), r"\[0, 1\] is -inf"),
    (contrastive_entropy, (CLEAN, MILD[:2], 3), r"expected \(..., 3\)"),
    (contrastive_entropy, (CLEAN, MILD, 0), "num_units must be at least 1"),
    (contrastive_ratio, (ONE, doubles(0.0)), "no ratio"),
    (mean_ratio, (CLEAN, STRONG[None], CLEAN[None]), "no ratio without a positive one"),
    (ratio_stderr, (TWO, doubles(1.0, -1.0)), "totals 0"),
    (contrastive_levels, (CLEAN, {}, 3), "distorted is empty"),
    (contrastive_levels, (CLEAN, COPIES, 3), "has 2 replicates and the baseline 1"),
    (verdict, (math.inf, 1, 1, 1), "must be finite"),
    (by_another, (CLEAN, {0.1: MILD}, 3), r"0.2 is no level; there is \[0.1\]"),
    (contrastive_entropy, (torch.tensor([1, 2]), TWO, 2), "floating-point"),
]


@pytest.mark.parametrize(("function", "asked", "message"), REFUSED)
def test_errors_say_what_is_wrong(function, asked, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(*asked)
