"""Scores many sequences of actions, each distinct beginning once.

Sequences that begin alike have the same stacks, so the sequences of a batch form a
tree of prefixes. It is walked move by move: one tensor operation serves every distinct
prefix of one length, of all samples and all texts. The factors of a sequence are those
along its path. Which stacks that makes is planned beforehand (``plans.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.plans import Plan, planned
from lm_latent_eval.models.rnng.stacks import Stacks

STACKS_AT_ONCE = 1 << 14
"""Stacks of one walk, at most (but for one sequence, which is never cut)."""


def score_moves(
    model: GenerativeModel, stacks: Stacks, row: Tensor, moves: Tensor
) -> Tensor:
    """Return log p of sequences of moves in nats, (R,) float64.

    Args:
        model: p(x, z).
        stacks: Where the sequences begin; not changed.
        row: The stack each begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
    """
    plans, which = planned(stacks, row, moves, STACKS_AT_ONCE)
    log_p = [_log_p(model, _walked(model, stacks, plan), plan) for plan in plans]
    return torch.cat(log_p)[which]


def follow_moves(
    model: GenerativeModel, stacks: Stacks, row: Tensor, moves: Tensor
) -> tuple[Stacks, Tensor]:
    """Return the stacks after sequences of moves, and the row of each, (R,)."""
    plans, which = planned(stacks, row, moves, STACKS_AT_ONCE)
    tables, rows = [], []
    for plan in plans:
        table, here = _walked(model, stacks, plan).compact(plan.last)
        tables.append(table)
        rows.append(here)
    joined, moved = Stacks.join(tables)
    last = torch.cat([r + m for r, m in zip(rows, moved, strict=True)])
    return joined, last[which]


def _walked(model: GenerativeModel, stacks: Stacks, plan: Plan) -> Stacks:
    """Return the stacks with those that the moves make."""
    table = stacks.extended(plan.below, plan.size)
    table.item[plan.shift, 0] = model.embeddings(plan.shift_word)
    for level in plan.levels:
        if level.reduced.start < level.reduced.stop:
            left, right = table.item[level.left], table.item[level.right]
            table.item[level.reduced] = model.composition(left, right)
        read = table.item[level.new, 0], table.state[level.base]
        table.state[level.new] = model.stack(*read)
    return table


def _log_p(model: GenerativeModel, stacks: Stacks, plan: Plan) -> Tensor:
    """Return log p of the sequences of a plan, (R,)."""
    log_shift, _ = model.log_actions(stacks, plan.shift_parent)
    log_word = model.log_word(stacks, plan.shift_parent, plan.shift_word)
    _, log_reduce = model.log_actions(stacks, plan.reduce_parent)
    nothing = log_shift.new_zeros(1)
    factor = torch.cat([log_shift + log_word, log_reduce, nothing])
    return factor[plan.path].sum(-1)
