"""Information rates in every base and unit."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from lm_latent_eval.estimators import InformationRate, branching_factor, perplexity


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


def test_perplexities_of_every_size():
    assert perplexity(-12.0, 8) == pytest.approx(math.exp(1.5), rel=1e-15)
    assert perplexity(2.0, 4) == pytest.approx(math.exp(-0.5), rel=1e-15)
    largest = math.log(sys.float_info.max)
    assert perplexity(-3 * largest, 3) == pytest.approx(sys.float_info.max)
    assert perplexity(-3 * (largest + 1e-9), 3) == math.inf
    assert perplexity(-math.inf, 3) == math.inf
    assert math.isnan(perplexity(math.nan, 3))


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=9))
def test_branching_factor_of_any_die(weights):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()

    found = branching_factor(p).item()

    assert found == pytest.approx(math.exp(entropy(p.numpy())))
    assert 1 - 1e-12 <= found <= len(weights) + 1e-9
    rounded = torch.tensor([0.5, 0.5 + 1e-7])
    assert branching_factor(rounded) == pytest.approx(2), "float32 rounds"
