"""Standard errors of means and ratios, row by row and against the formula."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.estimators.standard_errors import ratio_stderr


def test_a_batch_of_ratios_is_each_of_them():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    found = ratio_stderr(a, b)
    assert found.shape == (3, 5)
    for row, (some, others) in enumerate(zip(a, b, strict=True)):
        for column, (x, y) in enumerate(zip(some, others, strict=True)):
            ratio = x.sum() / y.sum()
            squares = sum(float(n - ratio * m) ** 2 for n, m in zip(x, y, strict=True))
            expected = math.sqrt(squares * 4 / 3) / y.sum().item()
            assert found[row, column].item() == pytest.approx(expected, rel=1e-12)


def test_one_pair_has_no_error_that_is_known():
    one = torch.ones(3, 1, dtype=torch.float64)
    assert ratio_stderr(2 * one, one).tolist() == [math.inf] * 3
