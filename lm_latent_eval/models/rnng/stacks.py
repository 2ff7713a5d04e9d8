"""Persistent stacks: a stack is an item on top of another stack.

One row is one stack: its topmost item, the LSTM's state after reading it, and the row
of the stack below. Stacks that begin alike share rows, nothing is ever copied, and a
history of actions is the number of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent


class Stacks:
    """A growing table of stacks; row 0 is the empty one, which lies below itself."""

    def __init__(
        self, state: Tensor, item: Tensor, below: Tensor, size: Tensor, used: int
    ) -> None:
        """Take columns of which the first ``used`` rows are stacks.

        Args:
            state: Of the LSTM, (rows, layers, 2, d): hidden and cell.
            item: Topmost items, (rows, 2, d): hidden and cell.
            below: Row of the stack without its topmost item, (rows,).
            size: Items, (rows,).
            used: Rows in use.
        """
        self.state, self.item, self.below, self.size = state, item, below, size
        self.used = used

    @classmethod
    def of_one(cls, state: Tensor, item: Tensor) -> Stacks:
        """Return the empty stack, given its LSTM state and anything for an item."""
        zero = torch.zeros(1, dtype=torch.long, device=state.device)
        return cls(state, item, zero, zero.clone(), 1)

    def top(self, row: Tensor) -> Tensor:
        """Return u, the top layer's hidden state, (R, d)."""
        return self.state[row, -1, 0]

    def push(self, base: Tensor, item: Tensor, state: Tensor) -> Tensor:
        """Add R stacks: an item on each ``base``; return their rows, (R,)."""
        begin, end = self.used, self.used + len(base)
        self._reserve(end)
        new = slice(begin, end)
        self.state[new], self.item[new] = state, item
        self.below[new], self.size[new] = base, self.size[base] + 1
        self.used = end
        return torch.arange(begin, end, device=base.device)

    def _reserve(self, rows: int) -> None:
        """Make room, doubling so that pushing row after row costs linear time."""
        capacity = len(self.below)
        if rows <= capacity:
            return
        more = max(rows, 2 * capacity) - capacity

        def grow(column: Tensor) -> Tensor:
            return torch.cat([column, column.new_zeros(more, *column.shape[1:])])

        self.state, self.item = grow(self.state), grow(self.item)
        self.below, self.size = grow(self.below), grow(self.size)

    def extended(self, below: Tensor, size: Tensor) -> Stacks:
        """Return a table with room for more stacks, of which these columns are known.

        Args:
            below: Of the new rows, (rows,).
            size: The same.
        """
        used, more = self.used, len(below)
        state, item = (
            torch.cat([column[:used], column.new_zeros(more, *column.shape[1:])])
            for column in (self.state, self.item)
        )
        below = torch.cat([self.below[:used], below])
        size = torch.cat([self.size[:used], size])
        return Stacks(state, item, below, size, used + more)

    def compact(self, row: Tensor) -> tuple[Stacks, Tensor]:
        """Keep given stacks and all below them; return them and their new rows.

        Which those are is found on the host, for which the device is waited for once.
        """
        rows, below = fetched(row, self.below[: self.used])
        wanted = torch.zeros(self.used, dtype=torch.bool)
        wanted[0] = True
        here = rows.flatten().unique()
        while not bool(wanted[here].all()):
            wanted[here] = True
            here = below[here].unique()
        (keep,) = wanted.nonzero(as_tuple=True)
        place = wanted.cumsum(0) - 1
        kept = sent(keep, row.device)
        stacks = Stacks(
            self.state[kept],
            self.item[kept],
            sent(place[below[keep]], row.device),
            self.size[kept],
            len(keep),
        )
        return stacks, sent(place[rows], row.device)

    @classmethod
    def join(cls, tables: Sequence[Stacks]) -> tuple[Stacks, list[int]]:
        """Lay tables end to end; return them and how far each one's rows moved."""
        columns = [
            (t.state[: t.used], t.item[: t.used], t.below[: t.used], t.size[: t.used])
            for t in tables
        ]
        moved = [0]
        for table in tables:
            moved.append(moved[-1] + table.used)
        state, item, below, size = zip(*columns, strict=True)
        shifted = [b + m for b, m in zip(below, moved, strict=False)]
        joined = cls(
            torch.cat(state),
            torch.cat(item),
            torch.cat(shifted),
            torch.cat(size),
            moved[-1],
        )
        return joined, moved[:-1]


@dataclass(frozen=True)
class StackState:
    """Where B texts with K histories of actions each stand."""

    stacks: Stacks
    row: Tensor
    """(B, K)."""

    def select(self, index: Tensor) -> StackState:
        """Pick texts."""
        return StackState(self.stacks, self.row[index])

    def resample(self, index: Tensor) -> StackState:
        """Pick histories of each text, (B, K')."""
        return StackState(self.stacks, self.row.gather(1, index))
