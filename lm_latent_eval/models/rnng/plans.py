"""Which stacks sequences of moves make: integers, planned on the host.

What a move leads to depends on no number that the model computes, so all sizes are
known before the first is made, and the device is waited for once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.models.rnng.stacks import Stacks
from lm_latent_eval.models.rnng.trees import NOTHING

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """Moves of one number, of all distinct beginnings: words first, then REDUCEs."""

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
class Plan:
    """Sequences of moves, R distinct ones, as stacks that are added to a table."""

    levels: list[Level]
    below: Tensor
    """Of every new stack."""
    size: Tensor
    shift: Tensor
    """The stacks that words make."""
    shift_word: Tensor
    shift_parent: Tensor
    """What each is put on."""
    reduce_parent: Tensor
    path: Tensor
    """Moves of each sequence, words before REDUCEs and then nothing, (R, A)."""
    last: Tensor
    """Where each sequence ends, (R,)."""


def planned(
    stacks: Stacks, row: Tensor, moves: Tensor, at_once: int
) -> tuple[list[Plan], Tensor]:
    """Plan sequences of moves, each distinct one once.

    Args:
        stacks: Where they begin.
        row: The stack each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
        at_once: Stacks of a plan, at most.

    Returns:
        Plans, and which of their sequences each is, (R,).
    """
    if not moves.shape[1]:  # a text without words is a plan, too
        moves = moves.new_full((len(moves), 1), NOTHING)
    used = slice(stacks.used)
    begin, rest, below, size = fetched(
        row, moves, stacks.below[used], stacks.size[used]
    )
    distinct, which = torch.unique(
        torch.cat([begin[:, None], rest], 1), dim=0, return_inverse=True
    )
    # Sequences are sorted, so those of one part share most of their beginnings.
    parts = distinct.split(max(1, at_once // max(1, moves.shape[1])))
    plans = [
        _plan(below.numpy(), size.numpy(), part.numpy(), row.device) for part in parts
    ]
    return plans, sent(which, row.device)


def _plan(
    below: Numbers, size: Numbers, sequences: Numbers, device: torch.device
) -> Plan:
    """Plan sorted distinct sequences, whose first column is where they begin."""
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
    counts = made.sum(0)
    borders = [0, *counts.cumsum().tolist()]
    edge = np.where(going, made.cumsum(0) - 1 + borders[:-1], -1)
    edge = np.append(place, len(place))[edge]  # (R, A)

    used = len(below)
    parent = np.where(level == 0, begin[first], used + edge[first, level - 1])
    below = np.append(below, np.zeros_like(parent))
    size = np.append(size, np.zeros_like(parent))
    reducing = word < 0
    left, base = np.zeros_like(parent), parent.copy()
    for start, stop in pairwise(borders):
        here, shifts = slice(start, stop), stop - int(reducing[start:stop].sum())
        left[shifts:stop] = below[parent[shifts:stop]]
        base[shifts:stop] = below[left[shifts:stop]]
        below[used + start : used + stop] = base[here]
        size[used + start : used + stop] = size[base[here]] + 1

    # Factors are those of all words, then those of all REDUCEs, then none.
    factor = np.append(np.argsort(np.argsort(reducing, kind="stable")), len(word))
    length = going.sum(1)
    last = np.where(length == 0, begin, used + edge[np.arange(len(edge)), length - 1])
    (shift,) = (~reducing).nonzero()
    there = _sent(
        device,
        *(base, left, parent, below[used:], size[used:], used + shift, word[shift]),
        *(parent[shift], parent[reducing], factor[edge], last),
    )
    base, left, right = (next(there) for _ in range(3))
    levels = []
    for start, stop in pairwise(borders):
        shifts = stop - int(reducing[start:stop].sum())
        ours, theirs = slice(start, stop), slice(shifts, stop)
        new, reduced = (slice(used + s.start, used + s.stop) for s in (ours, theirs))
        levels.append(Level(new, reduced, base[ours], left[theirs], right[theirs]))
    return Plan(levels, *there)


def _sent(device: torch.device, *arrays: Numbers) -> Iterator[Tensor]:
    """Send arrays to a device in one copy."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = sent(flat, device).split([array.size for array in arrays])
    for part, array in zip(parts, arrays, strict=True):
        yield part.view(array.shape)
