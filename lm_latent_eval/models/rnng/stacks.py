"""Persistent stacks: a stack is an item on top of another stack.

One row is one stack: its topmost item, the LSTM's state after reading it, and the row
of the stack below. Stacks that begin alike share rows, nothing is ever copied, and a
history of actions is the number of one row. Numbers of rows stay on the host: which
stacks there are depends on no number that the model computes, so that a device is
asked for nothing but states and items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import sent

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Stacks:
    """A table of stacks; row 0 is the empty one, which lies below itself."""

    state: Tensor
    """Of the LSTM, (rows, layers, 2, d): hidden and cell."""
    item: Tensor
    """Topmost items, (rows, 2, d): hidden and cell."""
    below: Integers
    """Row of the stack without its topmost item, (rows,)."""
    size: Integers
    """Items, (rows,)."""

    @classmethod
    def of_one(cls, state: Tensor, item: Tensor) -> Stacks:
        """Return the empty stack, given its LSTM state and anything for an item."""
        return cls(state, item, np.zeros(1, np.int64), np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self.below)

    def top(self, row: Tensor) -> Tensor:
        """Return u, the top layer's hidden state, (R, d)."""
        return self.state[row, -1, 0]

    def extended(self, below: Integers, size: Integers) -> Stacks:
        """Return a table with room for more stacks, of which these columns are known.

        Args:
            below: Of the new rows, (rows,).
            size: The same.
        """
        state, item = (
            torch.cat([column, column.new_zeros(len(below), *column.shape[1:])])
            for column in (self.state, self.item)
        )
        below, size = np.append(self.below, below), np.append(self.size, size)
        return Stacks(state, item, below, size)

    def compact(self, row: Integers) -> tuple[Stacks, Integers]:
        """Keep given stacks and all below them; return them and their new rows."""
        wanted = np.zeros(len(self), bool)
        wanted[0] = True
        here = np.unique(row)
        while not wanted[here].all():
            wanted[here] = True
            here = np.unique(self.below[here])
        (keep,) = wanted.nonzero()
        place = wanted.cumsum() - 1
        kept = sent(torch.from_numpy(keep), self.state.device)
        stacks = Stacks(
            self.state[kept],
            self.item[kept],
            place[self.below[keep]],
            self.size[keep],
        )
        return stacks, place[row]

    @classmethod
    def join(cls, tables: Sequence[Stacks]) -> tuple[Stacks, list[int]]:
        """Lay tables end to end; return them and how far each one's rows moved."""
        moved = np.cumsum([0, *map(len, tables)]).tolist()[:-1]
        joined = cls(
            torch.cat([table.state for table in tables]),
            torch.cat([table.item for table in tables]),
            np.concatenate([t.below + m for t, m in zip(tables, moved, strict=True)]),
            np.concatenate([table.size for table in tables]),
        )
        return joined, moved


@dataclass(frozen=True)
class StackState:
    """Where B texts with K histories of actions each stand."""

    stacks: Stacks
    row: Integers
    """(B, K)."""

    def select(self, index: Tensor) -> StackState:
        return StackState(self.stacks, self.row[index.numpy()])

    def resample(self, index: Tensor) -> StackState:
        """Pick histories of each text, (B, K')."""
        row = np.take_along_axis(self.row, index.numpy(), 1)
        return StackState(self.stacks, row)
