"""A corpus's number and its errors: by hand, and against replicates."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.estimators import Bound, CorpusRate, Estimate, log_evidence, stderr


def drawn(log_p, error, checked=True):
    """Estimates as draws give them, by their log-evidences and errors."""
    exact = Estimate.exact(log_p, num_tokens=1)
    replaced = {"stderr": error if checked else None, "draws_stderr": error}
    return Estimate(**{**vars(exact), **replaced})


def test_each_error_by_hand():
    texts = [drawn(-8.0, 0.3), drawn(-2.0, 0.4)]

    rate = CorpusRate.nats(texts, torch.tensor([2, 8]))

    assert rate.value == 1
    # errors add in squares, biases (half of their squares) as they are
    assert rate.monte_carlo_stderr == pytest.approx(math.hypot(0.5, 0.125) / 10)
    assert rate.draws_stderr == pytest.approx(rate.monte_carlo_stderr)
    # residuals 8 - 2 and 2 - 8, N / (N - 1) = 2; biases are in no spread
    expected = math.hypot(math.sqrt(2 * (36 + 36)), 0.125) / 10
    assert rate.stderr == pytest.approx(expected)


@given(
    nats=st.lists(st.floats(-500, 0), min_size=2, max_size=10),
    units=st.integers(50, 5_000),
)
def test_bits_and_perplexity_are_one_rate(nats, units):
    texts, counts = [drawn(n, 0.2) for n in nats], torch.full((len(nats),), units)

    bits, ppl = CorpusRate.bits(texts, counts), CorpusRate.perplexity(texts, counts)

    assert ppl.value == pytest.approx(2**bits.value, rel=1e-9)
    for name in ("stderr", "monte_carlo_stderr", "draws_stderr"):
        error = getattr(bits, name) * math.log(2)
        assert getattr(ppl, name) == pytest.approx(ppl.value * error, rel=1e-9)


def test_one_text_without_an_error_is_enough():
    texts = [drawn(-8.0, 0.3), drawn(-2.0, 0.4, checked=False), drawn(-3.0, 0.1)]

    rate = CorpusRate.perplexity(texts, torch.tensor([2, 8, 3]))

    assert rate.monte_carlo_stderr is None and rate.stderr is None
    assert rate.draws_stderr > 0


def test_what_draws_miss_adds_up_over_texts():
    """It has one direction: too low by the same in every text."""
    part = drawn(-5.0, 0.3)
    missing = Estimate(**{**vars(part), "stderr": math.hypot(0.3, 0.4)})

    rate = CorpusRate.nats([missing] * 100, torch.tensor([1] * 100))

    together = math.hypot(0.3 * 10, 100 * (0.3**2 / 2 + 0.4)) / 100
    assert rate.monte_carlo_stderr == pytest.approx(together)
    assert rate.stderr == pytest.approx(together), "texts are equal"
    assert rate.draws_stderr == pytest.approx(math.hypot(3, 4.5) / 100)


def test_texts_that_share_their_draws_err_together():
    texts, units = [drawn(-5.0, 0.1)] * 3, torch.tensor([1, 1, 1])

    apart = CorpusRate.nats(texts, units)
    shared = CorpusRate.nats(texts, units, ["a", "a", "b"])

    bias = 3 * 0.1**2 / 2
    assert apart.draws_stderr == pytest.approx(math.hypot(0.1 * 3**0.5, bias) / 3)
    assert shared.draws_stderr == pytest.approx(math.hypot(0.2, 0.1, bias) / 3)


def test_a_single_text_has_no_error_over_texts():
    rate = CorpusRate.bits([drawn(-8.0, 0.3)], torch.tensor([2]))

    assert rate.stderr is None and rate.monte_carlo_stderr > 0


def test_what_differs_between_texts_has_the_draws_in_it():
    """Equal texts: all that is left to differ is the draws."""
    rate = CorpusRate.nats([drawn(-5.0, 0.3)] * 4, torch.tensor([2] * 4))

    assert rate.stderr == rate.monte_carlo_stderr


def test_infinite_perplexities_have_no_error_where_there_is_none():
    rate = CorpusRate.perplexity([drawn(-9e5, 0.0)] * 2, torch.tensor([1, 1]))

    assert (rate.value, rate.stderr) == (math.inf, 0.0)


def test_unknown_draws_stay_unknown():
    texts = [drawn(-1.0, math.inf, checked=False)] * 2

    assert CorpusRate.bits(texts, torch.tensor([3, 3])).draws_stderr == math.inf


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"num_units has shape \(3,\).*\(2,\)"):
        CorpusRate.nats([drawn(-1.0, 0.1)] * 2, torch.ones(3))
    with pytest.raises(ValueError, match="num_units must be at least 1"):
        CorpusRate.nats([drawn(-1.0, 0.1)], torch.tensor([0]))


@pytest.mark.parametrize(("num_texts", "trials"), [(1, 2000), (200, 200)])
def test_intervals_of_a_corpus_cover_the_truth(num_texts, trials):
    """Weights of effective size near 40 of 100: errors of 200 texts lose to the bias
    of their logarithms unless that is counted."""
    num_samples, sigma = 100, 0.95
    generator = torch.Generator().manual_seed(num_texts)
    covered = without_bias = 0
    for _ in range(trials):
        z = torch.randn(
            num_texts, num_samples, generator=generator, dtype=torch.float64
        )
        log_w = sigma * z - sigma**2 / 2  # of mean 1: log p(x) is 0
        errors, found = stderr(log_w).tolist(), log_evidence(log_w).tolist()
        texts = [drawn(n, e) for n, e in zip(found, errors, strict=True)]
        rate = CorpusRate.nats(texts, torch.ones(num_texts, dtype=torch.long))
        covered += abs(rate.value) <= 1.96 * rate.monte_carlo_stderr
        plain = math.hypot(*errors) / num_texts
        without_bias += abs(rate.value) <= 1.96 * plain

    noise = 3 * math.sqrt(0.93 * 0.07 / trials)
    assert covered / trials >= 0.93 - noise
    if num_texts == 200:
        assert without_bias / trials < 0.9, "premise: the bias matters"


def test_an_average_of_log_weights_has_no_bias_of_a_logarithm():
    """Its errors only add in squares; those of logarithms have half a variance more."""

    def estimates(bound):
        known = Estimate.exact(-9.0, num_tokens=3)
        return [replace(known, bound=bound, draws_stderr=2.0, stderr=2.0)] * 4

    units = torch.tensor([3] * 4)
    bound = CorpusRate.nats(estimates(Bound.ESTIMATED_LOWER), units)
    assert bound.monte_carlo_stderr == pytest.approx(2 * math.sqrt(4) / 12)
    drawn = CorpusRate.nats(estimates(Bound.STOCHASTIC_LOWER), units)
    assert drawn.monte_carlo_stderr == pytest.approx(math.hypot(4, 8) / 12)
