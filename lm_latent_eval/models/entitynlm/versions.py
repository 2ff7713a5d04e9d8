r"""Persistent versions of entity slots over many chains.

A slot is a sum of how it began and of what it moved towards. After its moves 1 .. m,

.. math::
    s = \Bigl(\prod_{i \le m} k_i\Bigr) s_0
        + \sum_{j \le m} a_j \Bigl(\prod_{j < i \le m} k_i\Bigr) u_j

if move i kept :math:`k_i` of the slot and added :math:`a_i` of :math:`u_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import expand_ranges


class Terms(NamedTuple):
    """Weighted sums, one after another."""

    start: Tensor
    """Where the terms of each sum begin, on the host, (N,)."""
    of: Tensor
    """What is summed, see ``Versions.term``, on the host, (M,)."""
    weight: Tensor
    """(M,)."""


@dataclass(frozen=True)
class Versions:
    """Vectors that slots began as, then slots after each of their moves.

    Moves of one slot lie together, in their order.
    """

    begin: Tensor
    """(N, D)."""
    moved: Tensor
    """(M, D)."""
    time: Tensor
    """When each came to be, in tokens from the beginning, (N + M,)."""
    mark: Tensor
    """Fingerprints: those of a text that have equal ones are equal, on the host,
    (N + M,)."""
    origin: Tensor
    """Which of ``begin`` the slot of each move began as, on the host, (M,)."""
    rank: Tensor
    """How many moves the slot had before, on the host, (M,)."""
    place: Tensor
    """Which of ``update`` each move went towards, on the host, (M,)."""
    log_kept: Tensor
    """Log of what is left of the beginning, (M,)."""
    log_added: Tensor
    """Log of how much each move added, (M,)."""
    update: Tensor
    """u, (P, D)."""

    @cached_property
    def vectors(self) -> Tensor:
        """(N + M, D)."""
        return torch.cat([self.begin, self.moved])

    def term(self, index: Tensor) -> Tensor:
        """Return vectors that versions are sums of: beginnings, then updates."""
        num_begin, device = len(self.begin), self.begin.device
        began = sent((index < num_begin)[:, None], device)
        first = self.begin[sent(index.clamp_max(num_begin - 1), device)]
        then = self.update[sent((index - num_begin).clamp_min(0), device)]
        return torch.where(began, first, then)

    def terms(self, index: Tensor) -> Terms:
        """Write versions as sums, (N,) on the host: how each began, then its moves."""
        num_begin, num_moves = len(self.begin), len(self.moved)
        moved = index >= num_begin
        move = torch.where(moved, index - num_begin, num_moves)
        rank, origin, place = (
            F.pad(x, (0, 1)) for x in (self.rank, self.origin, self.place)
        )
        first = torch.where(moved, move - rank[move], num_moves)
        step, which = expand_ranges(first - 1, torch.where(moved, move + 1, num_moves))
        begins = step < first[which]
        # What has no moves, and a beginning, which was not added, have the last number.
        step = step.masked_fill(begins, num_moves)
        began = torch.where(moved, origin[move], index)[which]
        of = torch.where(begins, began, num_begin + place[step])
        kept = F.pad(self.log_kept, (0, 1))
        share = F.pad(self.log_added - self.log_kept, (0, 1))
        step, move = (sent(x, share.device) for x in (step, move[which]))
        start = torch.searchsorted(which, torch.arange(len(index)))
        return Terms(start, of, (kept[move] + share[step]).exp())
