"""Grouped softmax: a topic's facts, a fact's aliases."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import expand_ranges, segment_logsumexp

TABLE = 1 << 24
"""Scores (places x things) held at a time."""


def log_choice(
    query: Tensor,
    row: Tensor,
    group: Tensor,
    chosen: Tensor,
    members: Callable[[Tensor], tuple[Tensor, Tensor]],
    vectors: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return log p(member | its group, a query), each (query, group) normalised once.

    Who asks what is told on the host.

    Args:
        query: Vectors that members' are compared with, (P, D).
        row: Which of them asks, (N,).
        group: The group that is asked, (N,).
        chosen: The member that is chosen, (N,).
        members: Groups -> where their members start and end.
        vectors: Members (U,) -> (U, D).

    Returns:
        Nats, (N,).
    """
    if not len(row):
        return query.new_zeros(0)
    many = int(group.max()) + 1
    pair, which = (row * many + group).unique(return_inverse=True)
    start, end = members(pair % many)
    member, of_pair = expand_ranges(start, end)
    distinct, column = member.unique(return_inverse=True)
    scores = _products(query, vectors(distinct), (pair // many)[of_pair], column)
    log_z = segment_logsumexp(scores, of_pair, len(pair))
    first = (end - start).cumsum(0) - (end - start)
    place = first[which] + chosen - start[which]
    place, which = (sent(x, scores.device) for x in (place, which))
    return scores[place] - log_z[which]


def _products(query: Tensor, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the inner products of rows (non-decreasing) and columns, elementwise."""
    asking, row = row.unique_consecutive(return_inverse=True)
    at_once = max(1, TABLE // len(table))
    parts = []
    ends = torch.arange(at_once, len(asking) + at_once, at_once, device=row.device)
    ends = torch.searchsorted(row, ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    for some, rows, columns in zip(
        asking.split(at_once), row.split(sizes), column.split(sizes), strict=True
    ):
        index = (some, rows % at_once, columns)
        some, rows, columns = (sent(x, query.device) for x in index)
        parts.append((query[some] @ table.t())[rows, columns])
    return torch.cat(parts)
