"""Columns of answers hold what numbers need, in little memory."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.totals import Totals, _Column


@pytest.mark.parametrize(
    "values",
    [
        [],
        [3.0],
        [3.0, 3.0, 3.0],
        [math.nan, math.nan],
        [math.nan, 1.0, math.nan],
        [1.0, math.nan],
        [2.0, 2.0, 1.0, 1.0],
        [math.inf, math.inf, 0.0],
    ],
)
def test_a_column_is_its_numbers(values):
    column = _Column("d")
    for value in values:
        column.add(value)
    found = column.numpy()
    np.testing.assert_array_equal(found, np.array(values))
    column.add(5.0)  # while the numbers before are used
    assert column.numpy().tolist()[-1] == 5.0 and len(found) == len(values)


def drawn(index, *weights):
    log_w = torch.tensor(weights, dtype=torch.float64).log()
    estimate = Estimate.from_log_weights(log_w, num_tokens=2)
    return replace(Answer(index, estimate, f"0/{index}"), text=f"{index:x}")


def test_weights_are_multiplied_as_they_come():
    """As many of each text as the least has; what is exact weighs always the same."""
    exact = Answer(2, Estimate.exact(-1.5, num_tokens=2), text="2")
    found = Totals([drawn(0, 0.5, 0.25, 0.5), exact, drawn(1, 0.1, 0.2)])
    products = torch.tensor([0.5 * 0.1, 0.25 * 0.2], dtype=torch.float64).log() - 1.5
    torch.testing.assert_close(found.corpus_weights, products)
    assert found.all_weighted and found.bounds == {Bound.EXACT, Bound.STOCHASTIC_LOWER}
    bare = drawn(3, 0.5)
    bare = replace(bare, estimate=replace(bare.estimate, log_weights=array("d")))
    found.add(bare)
    assert found.corpus_weights is None and not found.all_weighted
    assert Totals([exact]).corpus_weights is None
