"""Bins of sequences by true log-probability, and the check of such a column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from lm_latent_eval.estimators.checks import (
    checked_count,
    checked_floating,
    refuse_first,
)


def checked_log_p(log_p: Tensor, name: str, *, estimated: bool = False) -> Tensor:
    """Return log-probabilities, (N,) nats or -inf; of estimates one may be above 0.

    Raises:
        TypeError: If it is not a floating-point tensor.
        ValueError: If it is not of that shape, or an entry is NaN or too large.
    """
    if checked_floating(log_p, name).ndim != 1:
        raise ValueError(f"{name} must have shape (N,); got {tuple(log_p.shape)}")
    good = log_p < math.inf if estimated else log_p <= 0
    refuse_first(~good, log_p, name, "a finite number" if estimated else "at most 0")
    return log_p


FEWEST = 11
"""Sequences of a mean that is reported: more than ten."""


class Bins(StrEnum):
    """Base class of error curves: their bins."""

    WIDTH = "width"
    """Equal ranges of true log-probability; only those with more than ten count."""

    COUNT = "count"
    """Equal numbers of sequences, in the order of true log-probability."""


@dataclass(frozen=True)
class Group:
    index: int
    """Index of the bin, from the lowest; bins without a group count too."""
    lowest: float
    """Lower edge of the bin; of equal counts, its lowest value."""
    highest: float
    members: Tensor
    """Indices of the sequences, shape ``(n,)``, int64."""


def equal_width(values: Tensor, num_bins: int) -> list[Group]:
    """Divide the range of some values, ``(N,)``, into equal parts.

    Only parts with more than ten values are returned, from the lowest. A value on an
    edge belongs to the part above it.

    Raises:
        ValueError: If ``num_bins`` is no whole number above 0, or no part has so many.

    Example:
        >>> values = torch.tensor([0.0] * 11 + [1.0] * 2 + [4.0] * 12)
        >>> [(g.index, g.lowest, len(g.members)) for g in equal_width(values, 4)]
        [(0, 0.0, 11), (3, 3.0, 12)]
    """
    edges = equal_edges(values, num_bins)
    index = torch.bucketize(values, edges[1:-1], right=True)
    counts = torch.bincount(index, minlength=num_bins)
    members = index.argsort(stable=True).split(counts.tolist())
    groups = [
        Group(i, edges[i].item(), edges[i + 1].item(), members[i])
        for i in range(num_bins)
        if len(members[i]) >= FEWEST
    ]
    if not groups:
        raise ValueError(
            f"none of {num_bins} bins of equal width has {FEWEST} of the "
            f"{len(values)} sequences: ask for fewer bins, or for bins of equal count"
        )
    return groups


def equal_count(values: Tensor, num_bins: int) -> list[Group]:
    """Divide sequences, in the order of their values, ``(N,)``, into equal parts.

    Sizes differ by one at most; ties stay in the order given.

    Raises:
        ValueError: If ``num_bins`` is no whole number above 0, or above N.

    Example:
        >>> parts = equal_count(torch.tensor([3.0, 1.0, 2.0]), 2)
        >>> [part.members.tolist() for part in parts]
        [[1, 2], [0]]
    """
    checked_count(num_bins, "num_bins")
    if num_bins > len(values):
        raise ValueError(
            f"{len(values)} sequences cannot fill {num_bins} bins of equal count"
        )
    parts = values.argsort(stable=True).tensor_split(num_bins)
    return [
        Group(i, values[part[0]].item(), values[part[-1]].item(), part)
        for i, part in enumerate(parts)
    ]


def equal_edges(values: Tensor, num_bins: int) -> Tensor:
    """Return the edges of equal parts of a range, ``(num_bins + 1,)``.

    Equal values have a range of one nat around them.
    """
    checked_count(num_bins, "num_bins")
    lowest, highest = values.min().item(), values.max().item()
    if lowest == highest:
        lowest, highest = lowest - 0.5, highest + 0.5
    return torch.linspace(lowest, highest, num_bins + 1, dtype=torch.float64)
