"""Binning of sequences by a number such as log-probability."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from lm_latent_eval.estimators.checks import checked_count

FEWEST = 11
"""Sequences in a bin of equal width that is reported: more than ten."""


class Bins(StrEnum):
    """What the bins of an error curve have in common."""

    WIDTH = "width"
    """Equal ranges of true log-probability; only those with more than ten count."""

    COUNT = "count"
    """Equal numbers of sequences, in the order of true log-probability."""


@dataclass(frozen=True)
class Group:
    """Sequences that share a bin."""

    index: int
    """Of the bin, from the lowest; bins without a group count too."""
    lowest: float
    """Where the bin begins; of equal counts, its lowest value."""
    highest: float
    members: Tensor
    """Places of the sequences, shape ``(n,)``, int64."""


def equal_width(values: Tensor, num_bins: int) -> list[Group]:
    """Divide the range of some values into equal parts; leave out the thinly filled.

    Args:
        values: Shape ``(N,)``, finite, N at least 1.
        num_bins: How many parts.

    Returns:
        The parts with more than ten values, from the lowest; a value on an edge belongs
        to the part above it.

    Raises:
        ValueError: If ``num_bins`` is no whole number above 0, or no part has so many.

    Example:
        >>> values = torch.tensor([0.0] * 11 + [1.0] * 2 + [4.0] * 12)
        >>> [(g.index, g.lowest, len(g.members)) for g in equal_width(values, 4)]
        [(0, 0.0, 11), (3, 3.0, 12)]
    """
    edges = equal_edges(values, num_bins)
    place = places(values, edges)
    counts = torch.bincount(place, minlength=num_bins)
    members = place.argsort(stable=True).split(counts.tolist())
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
    """Divide sequences, in the order of their values, into equal parts.

    Args:
        values: Shape ``(N,)``, finite; ties stay in the order given.
        num_bins: How many parts; their sizes differ by one at most.

    Returns:
        The parts, from the lowest.

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
    """Return the ends of equal parts of a range, of one nat around equal values.

    Args:
        values: Any shape, finite.
        num_bins: How many parts.

    Returns:
        Shape ``(num_bins + 1,)``, float64.

    Raises:
        ValueError: If ``num_bins`` is no whole number above 0.

    Example:
        >>> equal_edges(torch.tensor([-3.0, -1.0]), 2).tolist()
        [-3.0, -2.0, -1.0]
    """
    checked_count(num_bins, "num_bins")
    lowest, highest = values.min().item(), values.max().item()
    if lowest == highest:
        lowest, highest = lowest - 0.5, highest + 0.5
    return torch.linspace(lowest, highest, num_bins + 1, dtype=torch.float64)


def places(values: Tensor, edges: Tensor) -> Tensor:
    """Return each value's bin; a value on an edge belongs to the upper one."""
    return torch.bucketize(values, edges[1:-1], right=True)
