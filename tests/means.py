"""Means of independent draws, held to five standard errors of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 1e-9


def mean_is(values: Tensor | Sequence[float], truth: float, precise: float) -> None:
    """Hold a mean to the truth; its error must be small enough to notice a bias."""
    values = torch.as_tensor(values, dtype=torch.float64).flatten()
    error = values.std().item() / math.sqrt(len(values))
    assert error < precise, "premise: precise enough to notice a bias"
    assert abs(values.mean().item() - truth) < 5 * error + ROUNDING


def weights_are_of(
    log_p: Tensor | float, log_w: Tensor | Sequence[float], precise: float = 0.05
) -> None:
    """Hold the mean of weights to p(x), relatively; log p of each or of all."""
    log_w = torch.as_tensor(log_w, dtype=torch.float64)
    mean_is((log_w - log_p).exp(), 1.0, precise)
