"""Independent draws, their means held to five errors of their own, and their counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from scipy.stats import chisquare
from torch import Tensor

ROUNDING = 1e-9


def uniform(*shape: int, seed: int) -> Tensor:
    """Draw numbers between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def normal(*shape: int, seed: int, sd: float = 1.0) -> Tensor:
    """Draw numbers of mean 0 and a standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    return sd * torch.randn(shape, generator=generator, dtype=torch.float64)


def log_normal(*shape: int, seed: int, sd: float = 1.0) -> Tensor:
    """Draw logarithms of weights of mean 1, long-tailed ones."""
    return normal(*shape, seed=seed, sd=sd) - sd**2 / 2


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


def p_value(
    drawn: Counter[Any], expected: Mapping[Hashable, float], cells: int = 8
) -> float:
    """Of a chi-square test; what is expected less than five times is one cell.

    Or, if all of it is, part of the first: that is too few for a cell of its own.
    Without at least so many cells there is nothing to compare.
    """
    assert drawn.keys() <= {name for name, count in expected.items() if count > 0}
    common = [name for name, count in expected.items() if count >= 5]
    assert len(common) >= cells, "premise: enough to compare"
    observed = [drawn[name] for name in common]
    wanted = [expected[name] for name in common]
    rare = drawn.total() - sum(observed), sum(expected.values()) - sum(wanted)
    if rare[1] >= 5:
        observed, wanted = [*observed, rare[0]], [*wanted, rare[1]]
    else:
        observed[0], wanted[0] = observed[0] + rare[0], wanted[0] + rare[1]
    return float(chisquare(observed, wanted).pvalue)
