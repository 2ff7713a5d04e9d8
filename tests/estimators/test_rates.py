"""Information rates in every base and unit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.estimators import InformationRate, branching_factor


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


def test_a_distribution_in_float32_may_be_rounded():
    rounded = torch.tensor([0.5, 0.5 + 1e-7])
    assert branching_factor(rounded) == pytest.approx(2)
