"""A number is read in one way, wherever it is given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.options import at_least_0, integer, one_of, positive, whole


@given(st.integers())
def test_whole_numbers_are_read_to_the_last_digit(number):
    assert integer(number) == integer(str(number)) == number


@given(st.integers(0, 2**53))
def test_a_float_without_a_fraction_is_a_whole_number(number):
    assert integer(float(number)) == integer(repr(float(number))) == number
    assert integer(np.float64(number)) == number


@pytest.mark.parametrize(
    "value", [1.5, "1.5", "1e-3", math.inf, "inf", "nan", "1e400", "", None, True, [1]]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="expected a whole number"):
        integer(value)
    with pytest.raises(
        ValueError, match=r"k=.*: expected a whole number of at least 1"
    ):
        whole("k", value, 1)


def test_limits():
    assert whole("k", "1e3", 1000) == 1000
    with pytest.raises(ValueError, match=r"k=999: .* at least 1000"):
        whole("k", 999, 1000)
    assert at_least_0("t", "0") == 0
    for value in (0, -1, "inf", math.nan, "hot", None, True):
        with pytest.raises(ValueError, match=r"t=.*: expected a positive number"):
            positive("t", value)
    for value in (-1, "inf", math.nan, "hot", None, True):
        with pytest.raises(ValueError, match=r"t=.*: expected a number of at least 0"):
            at_least_0("t", value)
    with pytest.raises(ValueError, match="did you mean beam"):
        one_of("estimator", "bean", ["is", "beam"])
