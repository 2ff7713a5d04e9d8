"""The record of one estimate, products of independent ones, and rates."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    InformationRate,
    effective_sample_size,
    pareto_k,
)
from tests.means import normal

DRAWS = normal(100, seed=0) - 50


def test_diagnostics_are_those_of_the_weights():
    estimate = Estimate.from_log_weights(DRAWS, num_tokens=12)
    assert estimate.effective_sample_size == effective_sample_size(DRAWS)
    assert estimate.pareto_k == pareto_k(DRAWS)
    assert "log_weights" not in repr(estimate)


def part(weights, num_tokens=2):
    log_w = torch.tensor(weights, dtype=torch.float64).log()
    return Estimate.from_log_weights(log_w, num_tokens=num_tokens)


def missing(estimate, share):
    """Return an estimate with the error that such a share of p(x) is missing."""
    stderr = math.hypot(estimate.draws_stderr, math.log1p(-share))
    return replace(estimate, stderr=stderr)


def test_a_product_of_parts_by_hand():
    a, b = part([0.2, 0.4, 0.3]), part([0.1, 0.5, 0.6], num_tokens=5)
    both = Estimate.product([a, b])
    assert math.exp(both.log_evidence) == pytest.approx(0.3 * 0.4)
    errors = math.hypot(a.draws_stderr, b.draws_stderr)
    assert (both.stderr, both.draws_stderr) == (None, pytest.approx(errors))
    known = Estimate.product([missing(a, 0.1), missing(b, 0.2)])
    missed = -math.log(0.9) - math.log(0.8)
    assert known.missed == pytest.approx(missed)
    expected = math.hypot(errors, missed)
    assert known.stderr == pytest.approx(expected)
    assert Estimate.product([missing(a, 0.1), b]).stderr is None
    assert both.effective_sample_size == b.effective_sample_size < 3
    assert both.num_tokens == 7
    assert both.num_samples == 3
    assert both.bound is Bound.STOCHASTIC_LOWER
    products = [math.log(x * y) for x, y in ((0.2, 0.1), (0.4, 0.5), (0.3, 0.6))]
    assert both.log_weights == pytest.approx(products)


def test_a_product_is_as_strong_as_its_weakest_part():
    beam = Estimate.from_beam(torch.tensor([0.5]).log(), num_tokens=1)
    sure = Estimate.exact(math.log(0.25), num_tokens=1)
    drawn = part([0.5, 0.25])
    none = replace(drawn, bound=Bound.NONE)
    for parts, bound, names in (
        ([sure, beam], Bound.STRICT_LOWER, "beam+exact"),
        ([beam, drawn, sure], Bound.STOCHASTIC_LOWER, "beam+exact+is"),
        ([none, beam], Bound.NONE, "beam+is"),
        ([sure, sure], Bound.EXACT, "exact"),
    ):
        product = Estimate.product(parts)
        assert (product.bound, product.estimator) == (bound, names)


@given(bits=st.floats(0.001, 100), units=st.floats(0.01, 100))
def test_conversions_return(bits, units):
    rate = InformationRate.of_bits(bits, stderr=0.1)

    there = rate.per(units)
    again = InformationRate.of_perplexity(
        rate.perplexity, stderr=rate.perplexity_stderr
    )

    assert there.per(1 / units).nats == pytest.approx(rate.nats)
    assert there.bits == pytest.approx(bits * units)
    assert there.bits_stderr == pytest.approx(0.1 * units)
    assert again.bits == pytest.approx(bits)
    assert again.nats_stderr == pytest.approx(rate.nats_stderr)
