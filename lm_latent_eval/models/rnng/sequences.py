"""Scoring of action sequences with shared prefixes.

Sequences that begin alike have the same stacks, so the sequences of a batch form a
tree of prefixes. It is walked move by move: one tensor operation serves every distinct
prefix of one length, of all samples and all texts. The factors of a sequence are those
along its path. Which stacks that makes is known beforehand (``growth.py``).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.growth import Derivations, derivations
from lm_latent_eval.models.rnng.stacks import Integers, Stacks

STACKS_AT_ONCE = 1 << 14
"""Stacks of one walk, at most (but for one sequence, which is never cut)."""


def walk(
    model: GenerativeModel,
    stacks: Stacks,
    row: Integers,
    moves: Integers,
    over: NDArray[np.bool_],
) -> tuple[Tensor, Stacks, Integers]:
    """Make sequences of moves.

    Args:
        model: p(x, z).
        stacks: Where the sequences begin.
        row: The stack each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
        over: Which end a sentence: nothing is kept of their stacks, (R,).

    Returns:
        log p of each in nats, (R,) float64; the stacks after them, and the row of each,
        (R,), the empty one after an end.
    """
    parts, which = derivations(stacks, row, moves, STACKS_AT_ONCE)
    ends = np.zeros(which.max(initial=-1) + 1, bool)
    ends[which] = over
    borders = np.cumsum([len(part.last) for part in parts])[:-1]
    log_p, tables, rows = [], [], []
    for part, end in zip(parts, np.split(ends, borders), strict=True):
        table = model.grown(stacks, part.growth)
        log_p.append(_log_p(model, table, part))
        table, last = table.compact(np.where(end, 0, part.last))
        tables.append(table)
        rows.append(last)
    joined, moved = Stacks.join(tables)
    last = np.concatenate([r + m for r, m in zip(rows, moved, strict=True)])
    there = sent(torch.from_numpy(which), stacks.state.device)
    return torch.cat(log_p)[there], joined, last[which]


def _log_p(model: GenerativeModel, stacks: Stacks, walked: Derivations) -> Tensor:
    """Return log p of sequences, (R,)."""
    top = stacks.top(walked.shift_parent)
    log_shift, _ = model.log_actions(top, walked.shift_size)
    log_word = model.log_word(top, walked.shift_size, walked.growth.word)
    top = stacks.top(walked.reduce_parent)
    _, log_reduce = model.log_actions(top, walked.reduce_size)
    nothing = log_shift.new_zeros(1)
    factor = torch.cat([log_shift + log_word, log_reduce, nothing])
    return factor[walked.path].sum(-1)
