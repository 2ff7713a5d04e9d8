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
    """Of the LSTM, (rows, layers, 2, d), hidden and cell: rows that were added together
    are one part, so that adding copies none."""
    items: Tensor
    """Of which stacks are made, (items, 2, d), hidden and cell."""
    below: Integers
    """Row of the stack without its topmost item, (rows,)."""
    size: Integers
    """Items, (rows,)."""
    item: Integers
    """Which item is the topmost one, (rows,); anything of the empty stack."""

    def __len__(self) -> int:
        return len(self.below)

    @property
    def device(self) -> torch.device:
        return self.items.device

    def top(self, row: Integers) -> Tensor:
        """Return u of some stacks, the top layer's hidden state, (R, d)."""
        return self._picked(row, [part[:, -1, 0] for part in self.states])

    def state(self, row: Integers) -> Tensor:
        """Return LSTM states of some stacks, in any order, (R, layers, 2, d)."""
        return self._picked(row, self.states)

    def _picked(self, row: Integers, parts: Sequence[Tensor]) -> Tensor:
        """Return some rows of what is given part by part."""
        sizes = np.array([len(part) for part in parts])
        ends = sizes.cumsum()
        which = ends.searchsorted(row, "right")
        order, in_order = np.arange(len(row)), bool((which[1:] >= which[:-1]).all())
        if not in_order:
            order = np.argsort(which, kind="stable")
        place: Integers = (row - (ends - sizes)[which])[order]
        there, back = sent_all(self.device, place, np.argsort(order))
        some = there.split(np.bincount(which, minlength=len(sizes)).tolist())
        pairs = zip(parts, some, strict=True)
        picked = torch.cat([part.index_select(0, p) for part, p in pairs])
        return picked if in_order else picked.index_select(0, back)

    def compact(self, row: Integers) -> tuple[Stacks, Integers]:
        """Keep given stacks and all below them; return them and their new rows."""
        wanted = np.zeros(len(self), bool)
        wanted[0] = True
        here = np.unique(row)
        while len(here):
            wanted[here] = True
            here = self.below[here]
            here = here[~wanted[here]]
        (keep,) = wanted.nonzero()
        place = wanted.cumsum() - 1
        used, item = distinct(self.item[keep])
        (there,) = sent_all(self.device, used)
        stacks = Stacks(
            (self.state(keep),),
            self.items.index_select(0, there),
            place[self.below[keep]],
            self.size[keep],
            item,
        )
        return stacks, place[row]

    @classmethod
    def join(cls, tables: Sequence[Stacks]) -> tuple[Stacks, list[int]]:
        """Lay tables end to end; return them and how far each one's rows moved."""
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
    """Stacks of B texts with K histories of actions each."""

    stacks: Stacks
    row: Integers
    """(B, K)."""

    def select(self, index: Tensor) -> StackState:
        return StackState(self.stacks, self.row[index.numpy()])

    def resample(self, index: Tensor) -> StackState:
        """Pick histories of each text, (B, K')."""
        row = np.take_along_axis(self.row, index.numpy(), 1)
        return StackState(self.stacks, row)


@dataclass(frozen=True)
class Growth:
    """Stacks that sequences of moves make of a table's, each distinct one once.

    Items depend on no stack under them: they are made first, those that others are
    composed of before these, and then states, from the lowest stacks up. New stacks
    are in order of how many other new ones they stand on.
    """

    path: Integers
    """The stack before each move and after the last, (R, A + 1)."""
    parent: Integers
    """The stack that each new one is made from, (rows,)."""
    move: Integers
    """The move that makes it, (rows,)."""
    below: Integers
    """The table's columns with those of the new stacks; see ``Stacks``."""
    size: Integers
    item: Integers
    word: Tensor
    """Words whose items are the first new ones."""
    composed: list[tuple[Tensor, Tensor]]
    """Left and right items of which the next new ones are composed, by height."""
    value: Tensor
    """``item`` of the new stacks, on the device."""
    base: Integers
    """The table's stacks that the first new ones stand on."""
    bases: list[Tensor]
    """Which of these the next ones stand on, depth by depth."""


def growth(stacks: Stacks, row: Integers, moves: Integers) -> Growth:
    """Follow sequences of moves.

    Args:
        stacks: A table.
        row: The stack of it that each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
    """
    used, room = len(stacks), np.zeros(int((moves != NOTHING).sum()), np.int64)
    below, size = np.append(stacks.below, room), np.append(stacks.size, room)
    parent, move, height, depth = np.zeros((4, len(below)), np.int64)
    path = np.repeat(row[:, None], moves.shape[1] + 1, 1)
    made, scale = used, moves.max(initial=0) - NOTHING + 1
    for a, column in enumerate(moves.T):
        (going,) = (column != NOTHING).nonzero()
        pair, which = distinct(path[going, a] * scale + column[going] - NOTHING)
        here = slice(made, made + len(pair))
        begun, done = pair // scale, pair % scale + NOTHING
        left, reducing = below[begun], done == REDUCE
        base = np.where(reducing, below[left], begun)
        parent[here], move[here], below[here] = begun, done, base
        size[here], depth[here] = size[base] + 1, depth[base] + 1
        height[here] = (np.maximum(height[begun], height[left]) + 1) * reducing
        path[going, a + 1 :] = (made + which)[:, None]
        made += len(pair)
    order, name = np.argsort(depth[:made], kind="stable"), np.arange(made)
    name[order] = np.arange(made)
    # New stacks are numbered by depth.
    path, below, parent = name[path], name[below[order]], name[parent[order]]
    size, move, height, depth = (x[order] for x in (size, move, height, depth))

    # Items are made by height: what is composed of the same two is one.
    item = np.append(stacks.item, np.zeros(made - used, np.int64))
    number, scale = len(stacks.items), len(stacks.items) + made
    by_height = used + np.argsort(height[used:], kind="stable")
    borders = np.bincount(height[used:]).cumsum()[:-1]
    words, *others = np.split(by_height, borders)
    word, which = distinct(move[words])
    item[words] = number + which
    number, pairs, sizes = number + len(word), [word[:0]], []
    for rows in others:
        right = parent[rows]
        pair, which = distinct(item[below[right]] * scale + item[right])
        item[rows] = number + which
        number += len(pair)
        pairs.append(pair)
        sizes.append(len(pair))
    pair = np.concatenate(pairs)
    _, first, *later = np.bincount(depth, minlength=2).tolist()
    base, above = np.split(below[used:], [first])
    # Each stands on one of those that were made last.
    above = above - np.repeat(np.cumsum([used, first, *later])[: len(later)], later)
    integers = word, pair // scale, pair % scale, item[used:], above
    there, lefts, rights, value, bases = sent_all(stacks.device, *integers)
    return Growth(
        path,
        parent[used:],
        move[used:],
        below,
        size,
        item,
        there,
        [*zip(lefts.split(sizes), rights.split(sizes), strict=True)],
        value,
        base,
        [*bases.split(later)],
    )


def distinct(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers, and the index of each."""
    found, which = np.unique(numbers, return_inverse=True)
    return found, which.reshape(numbers.shape)


def sent_all(device: torch.device, *arrays: Integers) -> Iterator[Tensor]:
    """Send arrays to a device in one copy."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = sent(flat, device).split([array.size for array in arrays])
    for part, array in zip(parts, arrays, strict=True):
        yield part.view(array.shape)
