"""Persistent stacks, and the host's bookkeeping of those that moves make.

A stack is an item on top of another stack. One row is one stack: its topmost item, the
LSTM's state after reading it, and the row of the stack below. Stacks that begin alike
share rows, nothing is ever copied, and a history of actions is the number of one row.

Numbers of rows and sizes stay on the host: which stacks a move makes depends on no
number that the model computes, so they are all known before the first is made, and a
device is asked for nothing but states and items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.rnng.trees import NOTHING

Integers = NDArray[np.int64]


class Computed(NamedTuple):
    """What a model computes of some stacks."""

    state: Tensor
    """Of the LSTM, (rows, layers, 2, d): hidden and cell."""
    item: Tensor
    """Topmost items, (rows, 2, d): hidden and cell."""


@dataclass(frozen=True)
class Stacks:
    """A table of stacks; row 0 is the empty one, which lies below itself."""

    parts: tuple[Computed, ...]
    """Rows that were added together, one part after the other: adding copies none."""
    below: Integers
    """Row of the stack without its topmost item, (rows,)."""
    size: Integers
    """Items, (rows,)."""

    @classmethod
    def of_one(cls, state: Tensor, item: Tensor) -> Stacks:
        """Return the empty stack, given its LSTM state and anything for an item."""
        none = np.zeros(1, np.int64)
        return cls((Computed(state, item),), none, none)

    def __len__(self) -> int:
        return len(self.below)

    @property
    def device(self) -> torch.device:
        return self.parts[0].state.device

    @cached_property
    def computed(self) -> Computed:
        """The parts as one."""
        if len(self.parts) == 1:
            return self.parts[0]
        states, items = zip(*self.parts, strict=True)
        return Computed(torch.cat(states), torch.cat(items))

    def states(self, row: Integers) -> Tensor:
        """Return LSTM states of some stacks, in any order, (R, layers, 2, d)."""
        (states,) = self._picked(row, [part.state for part in self.parts])
        return states

    def items(self, row: Integers) -> Tensor:
        """Return topmost items of some stacks, in any order, (R, 2, d)."""
        (items,) = self._picked(row, [part.item for part in self.parts])
        return items

    def _picked(self, row: Integers, *columns: Sequence[Tensor]) -> list[Tensor]:
        """Return some rows of columns, each of which is given part by part."""
        sizes = np.array([len(part) for part in columns[0]])
        ends = sizes.cumsum()
        which = ends.searchsorted(row, "right")
        order, in_order = np.arange(len(row)), bool((which[1:] >= which[:-1]).all())
        if not in_order:
            order = np.argsort(which, kind="stable")
        place: Integers = (row - (ends - sizes)[which])[order]
        there, back = sent_all(self.device, place, np.argsort(order))
        counts = np.bincount(which, minlength=len(sizes)).tolist()
        some = there.split(counts)
        picked = [
            torch.cat(
                [part.index_select(0, p) for part, p in zip(column, some, strict=True)]
            )
            for column in columns
        ]
        if in_order:
            return picked
        return [column.index_select(0, back) for column in picked]

    def top(self, row: Tensor) -> Tensor:
        """Return u, the top layer's hidden state, (R, d)."""
        return self.computed.state[row, -1, 0]

    def extended(self, below: Integers, size: Integers) -> Stacks:
        """Return a table with room for more stacks, of which these columns are known.

        Args:
            below: Of the new rows, (rows,).
            size: The same.
        """
        columns = [
            torch.cat([column, column.new_zeros(len(below), *column.shape[1:])])
            for column in self.computed
        ]
        return Stacks(
            (Computed(*columns),),
            np.append(self.below, below),
            np.append(self.size, size),
        )

    def followed_by(self, more: Computed, below: Integers, size: Integers) -> Stacks:
        """Return a table with more stacks.

        Args:
            more: Of the new rows.
            below: The same, (rows,).
            size: The same.
        """
        return Stacks(
            (*self.parts, more),
            np.append(self.below, below),
            np.append(self.size, size),
        )

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
        stacks = Stacks(
            (Computed(*self._picked(keep, *zip(*self.parts, strict=True))),),
            place[self.below[keep]],
            self.size[keep],
        )
        return stacks, place[row]

    @classmethod
    def join(cls, tables: Sequence[Stacks]) -> tuple[Stacks, list[int]]:
        """Lay tables end to end; return them and how far each one's rows moved."""
        moved = np.cumsum([0, *map(len, tables)]).tolist()[:-1]
        joined = cls(
            (
                Computed(
                    *map(torch.cat, zip(*(t.computed for t in tables), strict=True))
                ),
            ),
            np.concatenate([t.below + m for t, m in zip(tables, moved, strict=True)]),
            np.concatenate([table.size for table in tables]),
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
class MovesAtOnce:
    """Moves of one tensor operation, words first and then REDUCEs."""

    new: slice
    """The stacks that they make."""
    reduced: slice
    """Those of them that REDUCEs make."""
    base: Tensor
    """What their topmost items stand on."""
    left: Tensor
    """Of REDUCEs: the stacks whose topmost items are composed."""
    right: Tensor


@dataclass(frozen=True)
class Reductions:
    """Stacks that REDUCEs of a table's stacks make, one step after the other.

    Each step goes on from the first stacks of the step before. All stand on stacks of
    the table.
    """

    borders: list[int]
    """Where the stacks of each step begin, and the end."""
    left: Integers
    """The stacks whose topmost items are composed, with what was made before."""
    right: Integers
    """What the first step goes on from."""
    below: Integers
    """What the new items stand on."""
    size: Integers
    """Items of every new stack."""


@dataclass(frozen=True)
class Derivations:
    """Sequences of moves, R distinct ones, as the stacks that they lead to.

    Each of those follows the ones that it is made of.
    """

    transitions: list[MovesAtOnce]
    below: Integers
    """Of every new stack."""
    size: Integers
    last: Integers
    """Where each sequence ends, (R,)."""
    shift: Tensor
    """The stacks that words make."""
    word: Tensor
    """Which word makes each."""
    shift_parent: Tensor
    """What each word is put on."""
    shift_size: Tensor
    """Items on it."""
    reduce_parent: Tensor
    """What each REDUCE is done to."""
    reduce_size: Tensor
    path: Tensor
    """Moves of each sequence, words before REDUCEs and then nothing, (R, A)."""


def reductions(
    stacks: Stacks, row: Integers, most: int | None = None
) -> tuple[Reductions, Integers]:
    """Do every number of REDUCEs, 0 .. M - 1, to distinct stacks, (R,).

    Args:
        stacks: A table.
        row: Stacks of it.
        most: M, at most; None: as many as there can be.

    Returns:
        What that makes, and the stack after each number, (R, M); 0 where there are
        fewer items.
    """
    # The stacks that go on longest first: those of each step are the first of the last.
    order = np.argsort(-stacks.size[row], kind="stable")
    items = stacks.size[row[order]]
    count = max(1, int(items.max(initial=0)))
    count = count if most is None else min(count, most)
    going = np.searchsorted(-items, -np.arange(1, count), "left")
    below = stacks.below[row[order]]
    composed, bases = [below[:0]], [below[:0]]
    for number in going:
        composed.append(below[:number])
        below = stacks.below[composed[-1]]
        bases.append(below)
    step = np.repeat(np.arange(1, count), going)
    borders = np.cumsum([0, *going])
    which = np.arange(len(step)) - borders[step - 1]
    rows = np.zeros((len(row), count), np.int64)
    rows[:, 0] = row
    rows[order[which], step] = len(stacks) + np.arange(len(step))
    made = Reductions(
        borders.tolist(),
        np.concatenate(composed),
        row[order[: going.max(initial=0)]],
        np.concatenate(bases),
        items[which] - step,
    )
    return made, rows


def derivations(
    stacks: Stacks, row: Integers, moves: Integers, at_once: int
) -> tuple[list[Derivations], Integers]:
    """Follow sequences of moves, each distinct one once.

    Args:
        stacks: Where they begin.
        row: The stack each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
        at_once: Stacks of one part, at most.

    Returns:
        Parts, and which of their sequences each is, (R,).
    """
    if not moves.shape[1]:  # a text without words is followed, too
        moves = np.full((len(moves), 1), NOTHING)
    sequences = torch.from_numpy(np.concatenate([row[:, None], moves], 1))
    distinct, which = torch.unique(sequences, dim=0, return_inverse=True)
    # Sequences are sorted, so those of one part share most of their beginnings.
    parts = distinct.split(max(1, at_once // max(1, moves.shape[1])))
    return [_derivations(stacks, part.numpy()) for part in parts], which.numpy()


def _derivations(stacks: Stacks, sequences: Integers) -> Derivations:
    """Follow sorted distinct sequences, whose first column is where they begin."""
    begin, moves = sequences[:, 0], sequences[:, 1:]
    differs = np.logical_or.accumulate(sequences[1:] != sequences[:-1], 1)
    going = moves != NOTHING
    made = going.copy()  # by the first sequence with this beginning
    made[1:] &= differs[:, 1:]

    level, first = made.T.nonzero()
    order = np.lexsort((moves[first, level] < 0, level))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    level, first = level[order], first[order]
    word = moves[first, level]
    borders = [0, *made.sum(0).cumsum().tolist()]
    edge = np.where(going, made.cumsum(0) - 1 + borders[:-1], -1)
    edge = np.append(place, len(place))[edge]  # (R, A)

    used = len(stacks)
    parent = np.where(level == 0, begin[first], used + edge[first, level - 1])
    below = np.append(stacks.below, np.zeros_like(parent))
    size = np.append(stacks.size, np.zeros_like(parent))
    reducing = word < 0
    left, base = np.zeros_like(parent), parent.copy()
    for start, stop in pairwise(borders):
        here, words = slice(start, stop), stop - int(reducing[start:stop].sum())
        left[words:stop] = below[parent[words:stop]]
        base[words:stop] = below[left[words:stop]]
        below[used + start : used + stop] = base[here]
        size[used + start : used + stop] = size[base[here]] + 1

    # Factors are those of all words, then those of all REDUCEs, then none.
    factor = np.append(np.argsort(np.argsort(reducing, kind="stable")), len(word))
    length = going.sum(1)
    last = np.where(length == 0, begin, used + edge[np.arange(len(edge)), length - 1])
    (shift,) = (~reducing).nonzero()
    shifted, reduced = parent[shift], parent[reducing]
    factors = (shifted, size[shifted], reduced, size[reduced], factor[edge])
    # All in one copy; of the moves between two borders these are views.
    base_there, left_there, right_there, *there = sent_all(
        stacks.device, base, left, parent, used + shift, word[shift], *factors
    )
    transitions = []
    for start, stop in pairwise(borders):
        words = stop - int(reducing[start:stop].sum())
        transitions.append(
            MovesAtOnce(
                slice(used + start, used + stop),
                slice(used + words, used + stop),
                base_there[start:stop],
                left_there[words:stop],
                right_there[words:stop],
            )
        )
    return Derivations(transitions, base, size[used:], last, *there)


def sent_all(device: torch.device, *arrays: Integers) -> Iterator[Tensor]:
    """Send arrays to a device in one copy."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = sent(flat, device).split([array.size for array in arrays])
    for part, array in zip(parts, arrays, strict=True):
        yield part.view(array.shape)
