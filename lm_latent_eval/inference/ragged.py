"""Ragged arrays: rows of different lengths on one flat axis.

Which rows and elements there are is decided on the host, where no device has to be
waited for; their values may be on a device.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import in_float64, sent


def expand_ranges(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the ranges start[i] .. end[i]-1.

    Args:
        start: First element of each range, shape (R,).
        end: One past the last, shape (R,).

    Returns:
        The elements and the range each belongs to, both of shape (sum of lengths,).

    Example:
        >>> expand_ranges(torch.tensor([5, 0]), torch.tensor([7, 1]))
        (tensor([5, 6, 0]), tensor([0, 0, 1]))
    """
    count = end - start
    row = torch.arange(len(count), device=start.device).repeat_interleave(count)
    offset = count.cumsum(0) - count
    element = torch.arange(len(row), device=start.device) - offset[row] + start[row]
    return element, row


def distinct(number: Tensor) -> tuple[Tensor, Tensor]:
    """Find the different ones of whole numbers on the host, (N,), in increasing order.

    Of thousands NumPy takes half the time of torch.

    Returns:
        Those, (D,), and which of them each of the N is, (N,).
    """
    found, which = np.unique(number.numpy(), return_inverse=True)
    return torch.from_numpy(found), torch.from_numpy(which)


def distinct_pairs(
    first: Tensor, second: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the different pairs of two columns on the host, in increasing order.

    Args:
        first: Whole numbers, shape (N,).
        second: Whole numbers below ``limit``, shape (N,).
        limit: More than any of ``second``.

    Returns:
        Both columns of the D pairs, (D,) each, and which pair each of the N is, (N,).

    Example:
        >>> a, b = torch.tensor([4, 2, 4]), torch.tensor([0, 1, 0])
        >>> distinct_pairs(a, b, 2)
        (tensor([2, 4]), tensor([1, 0]), tensor([1, 0, 1]))
    """
    pair, which = distinct(first * limit + second)
    return pair // limit, pair % limit, which


def in_groups(
    columns: tuple[Tensor, ...], size: Tensor, limit: int
) -> Iterator[tuple[Tensor, ...]]:
    """Cut rows into groups of at most ``limit`` elements, or of one larger row.

    Args:
        columns: Several values of each row, (R,) each.
        size: Elements of each row, (R,).
        limit: Elements of a group.

    Yields:
        The columns of one group after another; at least one, if empty, group.

    Example:
        >>> row = torch.arange(4)
        >>> [x.tolist() for x, in in_groups((row,), torch.tensor([3, 2, 9, 1]), 5)]
        [[0, 1], [2], [3]]
    """
    total, counts = 0, [0]
    if int(size.sum()) <= limit:
        counts = [len(size)]
    else:
        for elements in size.tolist():
            if counts[-1] and total + elements > limit:
                total = 0
                counts.append(0)
            total += elements
            counts[-1] += 1
    yield from zip(*(column.split(counts) for column in columns), strict=True)


AT_ONCE = 1 << 24
"""Numbers of a table (places x words, places x vectors) that are held at a time."""


def in_parts(width: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut rows of a table into parts that are held at a time.

    Args:
        width: Numbers of a row.
        columns: What there is of each row, (R, ...) each.

    Yields:
        The columns of one part after another; at least one, if empty, part.
    """
    size = max(1, AT_ONCE // width)
    yield from zip(*(column.split(size) for column in columns), strict=True)


def ranked_within(group: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Sort elements by their groups, and each group's from the largest down.

    Both sorts are stable: among equal values the first comes first, whatever other
    groups there are.

    Args:
        group: The group of each element, shape (N,).
        value: What to compare, shape (N,).

    Returns:
        The elements in that order and the place of each in its group, both (N,).

    Example:
        >>> group = torch.tensor([1, 0, 1, 1])
        >>> ranked_within(group, torch.tensor([3.0, 1.0, 5.0, 3.0]))
        (tensor([1, 2, 0, 3]), tensor([0, 0, 1, 2]))
    """
    order = value.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    place = torch.arange(len(order), device=order.device)
    return order, place - torch.searchsorted(group[order], group[order])


def segment_logsumexp(value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Log of the summed exponentials of each row; ``-inf`` for an empty one.

    Args:
        value: Nats, shape (N,).
        row: The row of each value, there or on the host, shape (N,).
        num_rows: R.

    Returns:
        Shape (R,), differentiable in ``value``.
    """
    row = sent(row, value.device)
    peak = value.new_full((num_rows,), -torch.inf).scatter_reduce(
        0, row, value.detach(), "amax"
    )
    peak = peak.masked_fill(peak.isneginf(), 0.0)
    total = value.new_zeros(num_rows).index_add(0, row, (value - peak[row]).exp())
    return total.log() + peak


def invert_cdf(
    prob: Tensor, row: Tensor, num_rows: int, query: Tensor, u: Tensor
) -> Tensor:
    """Draw from distributions that lie end to end, by inverting their cdfs.

    Args:
        prob: Unnormalised probabilities, grouped by row, shape (N,).
        row: The row of each, non-decreasing, there or on the host, shape (N,).
        num_rows: R; what is drawn of a row without mass belongs to no row.
        query: The row to draw from, there or on the host, shape (Q,).
        u: A number in (0, 1) each, shape (Q,).

    Returns:
        Indices into ``prob``, each of positive probability, shape (Q,).

    Example:
        >>> prob, row = torch.tensor([1.0, 3.0, 0.0, 5.0]), torch.tensor([0, 0, 0, 1])
        >>> query, u = torch.tensor([0, 0, 0, 1]), torch.tensor([0.2, 0.3, 0.99, 0.5])
        >>> invert_cdf(prob, row, 2, query, u)
        tensor([0, 1, 1, 3])
    """
    # The mass of thousands of rows: float32 would leave little of the last ones.
    mass = F.pad(in_float64(prob).cumsum(0), (1, 0))
    ends = torch.searchsorted(
        row, torch.arange(num_rows, device=row.device), right=True
    )
    ends, query, u = (sent(x, mass.device) for x in (ends, query, u))
    start, end = mass[F.pad(ends, (1, 0))[query]], mass[ends[query]]
    # Below the end despite rounding: the first mass above is of this row, and grown.
    drawn = torch.minimum(start + u * (end - start), torch.nextafter(end, start))
    return torch.searchsorted(mass[1:], drawn, right=True).to(prob.device)
