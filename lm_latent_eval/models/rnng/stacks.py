"""Persistent stacks, and the host's bookkeeping of those that moves make.

A stack is an item on top of another stack. One row is one stack: its topmost item, the
LSTM's state after reading it, and the row of the stack below. Stacks that begin alike
share rows, stacks that end alike share items, and a history of actions is the number of
one row.

Numbers of rows and sizes stay on the host: which stacks a move makes depends on no
number that the model computes, so they are all known before the first is made, and a
device is asked for nothing but states and items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.rnng.trees import NOTHING, REDUCE

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Stacks:
    """A table of stacks; row 0 is the empty one, which lies below itself."""

    states: tuple[Tensor, ...]
    """LSTM states, (rows, layers, 2, d), hidden and cell, in parts so that adding rows
    copies none."""
    items: Tensor
    """Hidden and cell of items, (items, 2, d), shared by stacks."""
    below: Integers
    """Row of the stack without its topmost item, (rows,)."""
    size: Integers
    """Number of items, (rows,)."""
    item: Integers
    """Index of the topmost item, (rows,); undefined for the empty stack."""

    def __len__(self) -> int:
        return len(self.below)

    @property
    def device(self) -> torch.device:
        return self.items.device

    def top(self, row: Integers) -> Tensor:
        """u of given stacks, the top layer's hidden state, (R, d)."""
        return self._picked(row, [part[:, -1, 0] for part in self.states])

    def state(self, row: Integers) -> Tensor:
        """LSTM states of given stacks, (R, layers, 2, d)."""
        return self._picked(row, self.states)

    def _picked(self, row: Integers, parts: Sequence[Tensor]) -> Tensor:
        sizes = np.array([len(part) for part in parts])
        ends = sizes.cumsum()
        part_of = ends.searchsorted(row, "right")
        order, in_order = np.arange(len(row)), bool((part_of[1:] >= part_of[:-1]).all())
        if not in_order:
            order = np.argsort(part_of, kind="stable")
        within: Integers = (row - (ends - sizes)[part_of])[order]
        index, back = sent_all(self.device, within, np.argsort(order))
        indices = index.split(np.bincount(part_of, minlength=len(sizes)).tolist())
        pairs = zip(parts, indices, strict=True)
        picked = torch.cat([part.index_select(0, i) for part, i in pairs])
        return picked if in_order else picked.index_select(0, back)

    def compact(self, row: Integers) -> tuple[Stacks, Integers]:
        """Keep given stacks and all below them; return the table and the new rows."""
        kept = np.zeros(len(self), bool)
        kept[0] = True
        layer = np.unique(row)
        while len(layer):
            kept[layer] = True
            layer = self.below[layer]
            layer = layer[~kept[layer]]
        (keep,) = kept.nonzero()
        new_row = kept.cumsum() - 1
        used, item = distinct(self.item[keep])
        (index,) = sent_all(self.device, used)
        stacks = Stacks(
            (self.state(keep),),
            self.items.index_select(0, index),
            new_row[self.below[keep]],
            self.size[keep],
            item,
        )
        return stacks, new_row[row]

    @classmethod
    def join(cls, tables: Sequence[Stacks]) -> tuple[Stacks, list[int]]:
        """Concatenate tables; return the result and the row offset of each."""
        moved = np.cumsum([0, *map(len, tables)]).tolist()[:-1]
        items = np.cumsum([0, *(len(table.items) for table in tables)]).tolist()[:-1]
        joined = cls(
            tuple(part for table in tables for part in table.states),
            torch.cat([table.items for table in tables]),
            np.concatenate([t.below + m for t, m in zip(tables, moved, strict=True)]),
            np.concatenate([table.size for table in tables]),
            np.concatenate([t.item + m for t, m in zip(tables, items, strict=True)]),
        )
        return joined, moved


@dataclass(frozen=True)
class StackState:
    """Stacks of B texts with K histories each; ``row`` is (B, K)."""

    stacks: Stacks
    row: Integers

    def select(self, index: Tensor) -> StackState:
        return StackState(self.stacks, self.row[index.numpy()])

    def resample(self, index: Tensor) -> StackState:
        row = np.take_along_axis(self.row, index.numpy(), 1)
        return StackState(self.stacks, row)


@dataclass(frozen=True)
class Growth:
    """Stacks that sequences of moves add to a table, each distinct one once.

    Items are independent of the stack under them, so they are made first, in order of
    height, and then states, in order of depth above the old table.
    """

    path: Integers
    """Stack before each move and after the last, (R, A + 1)."""
    parent: Integers
    """Stack from which each new one is made, (rows,)."""
    move: Integers
    """Move that makes it, (rows,)."""
    below: Integers
    """Columns ``below``, ``size`` and ``item`` of the enlarged table; see ``Stacks``.
    """
    size: Integers
    item: Integers
    word: Tensor
    """Words of the first new items."""
    composed: list[tuple[Tensor, Tensor]]
    """Left and right children of the next new items, by height."""
    value: Tensor
    """``item`` of the new stacks, on the device."""
    base: Integers
    """Rows of the old table under the first new stacks."""
    bases: list[Tensor]
    """Indices, into the depth before, of the rows under later new stacks."""


def growth(stacks: Stacks, row: Integers, moves: Integers) -> Growth:
    """Follow sequences of moves.

    Args:
        stacks: A table.
        row: The stack that each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
    """
    used, new_rows = len(stacks), np.zeros(int((moves != NOTHING).sum()), np.int64)
    below, size = np.append(stacks.below, new_rows), np.append(stacks.size, new_rows)
    parent, move, height, depth = np.zeros((4, len(below)), np.int64)
    path = np.repeat(row[:, None], moves.shape[1] + 1, 1)
    made, scale = used, moves.max(initial=0) - NOTHING + 1
    for a, column in enumerate(moves.T):
        (active,) = (column != NOTHING).nonzero()
        pair, which = distinct(path[active, a] * scale + column[active] - NOTHING)
        new = slice(made, made + len(pair))
        begun, done = pair // scale, pair % scale + NOTHING
        left, reducing = below[begun], done == REDUCE
        base = np.where(reducing, below[left], begun)
        parent[new], move[new], below[new] = begun, done, base
        size[new], depth[new] = size[base] + 1, depth[base] + 1
        height[new] = (np.maximum(height[begun], height[left]) + 1) * reducing
        path[active, a + 1 :] = (made + which)[:, None]
        made += len(pair)
    order, name = np.argsort(depth[:made], kind="stable"), np.arange(made)
    name[order] = np.arange(made)
    # New stacks are numbered by depth.
    path, below, parent = name[path], name[below[order]], name[parent[order]]
    size, move, height, depth = (x[order] for x in (size, move, height, depth))

    # Items are made by height, and those of the same two parts are one.
    item = np.append(stacks.item, np.zeros(made - used, np.int64))
    num_items, scale = len(stacks.items), len(stacks.items) + made
    by_height = used + np.argsort(height[used:], kind="stable")
    borders = np.bincount(height[used:]).cumsum()[:-1]
    words, *others = np.split(by_height, borders)
    word, which = distinct(move[words])
    item[words] = num_items + which
    num_items, pairs, sizes = num_items + len(word), [word[:0]], []
    for rows in others:
        right = parent[rows]
        pair, which = distinct(item[below[right]] * scale + item[right])
        item[rows] = num_items + which
        num_items += len(pair)
        pairs.append(pair)
        sizes.append(len(pair))
    pair = np.concatenate(pairs)
    _, first, *later = np.bincount(depth, minlength=2).tolist()
    base, above = np.split(below[used:], [first])
    # Each stands on a stack of the depth before.
    above = above - np.repeat(np.cumsum([used, first, *later])[: len(later)], later)
    integers = word, pair // scale, pair % scale, item[used:], above
    words_sent, lefts, rights, value, bases = sent_all(stacks.device, *integers)
    return Growth(
        path,
        parent[used:],
        move[used:],
        below,
        size,
        item,
        words_sent,
        [*zip(lefts.split(sizes), rights.split(sizes), strict=True)],
        value,
        base,
        [*bases.split(later)],
    )


def distinct(numbers: Integers) -> tuple[Integers, Integers]:
    values, inverse = np.unique(numbers, return_inverse=True)
    return values, inverse.reshape(numbers.shape)


def sent_all(device: torch.device, *arrays: Integers) -> Iterator[Tensor]:
    """Send arrays to a device in one copy."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = sent(flat, device).split([array.size for array in arrays])
    for part, array in zip(parts, arrays, strict=True):
        yield part.view(array.shape)
