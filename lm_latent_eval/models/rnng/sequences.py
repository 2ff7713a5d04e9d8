"""Scores many sequences of actions, each distinct beginning once.

Sequences that begin alike have the same stacks, so the sequences of a batch form a
tree of prefixes. It is walked move by move: one tensor operation serves every distinct
prefix of one length, of all samples and all texts. The factors of a sequence are those
along its path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.stacks import Stacks
from lm_latent_eval.models.rnng.trees import NOTHING

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
    distinct, which = torch.unique(
        torch.cat([row[:, None], moves], 1), dim=0, return_inverse=True
    )
    log_p = [
        _walk(model, *stacks.compact(part[:, 0]), part[:, 1:])[0]
        for part in distinct.split(_sequences_at_once(moves))
    ]
    return torch.cat(log_p)[which]


def follow_moves(
    model: GenerativeModel, stacks: Stacks, row: Tensor, moves: Tensor
) -> tuple[Stacks, Tensor]:
    """Return the stacks after sequences of moves, and the row of each, (R,)."""
    distinct, which = torch.unique(
        torch.cat([row[:, None], moves], 1), dim=0, return_inverse=True
    )
    tables, rows = [], []
    for part in distinct.split(_sequences_at_once(moves)):
        table, here = stacks.compact(part[:, 0])
        table, here = table.compact(_walk(model, table, here, part[:, 1:])[1])
        tables.append(table)
        rows.append(here)
    joined, moved = Stacks.join(tables)
    last = torch.cat([r + m for r, m in zip(rows, moved, strict=True)])
    return joined, last[which]


def _sequences_at_once(moves: Tensor) -> int:
    # Sequences are sorted, so those of one part share most of their beginnings.
    return max(1, STACKS_AT_ONCE // max(1, moves.shape[1]))


def _walk(
    model: GenerativeModel, stacks: Stacks, row: Tensor, moves: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log p of distinct sequences, and the row where each ends, (R,)."""
    num_words = model.config.vocab_size
    row = row.clone()
    parents, words, paths = [row[:0]], [row[:0]], []
    edges = 0
    for move in moves.unbind(1):
        (live,) = (move != NOTHING).nonzero(as_tuple=True)
        # REDUCE is -1, so a move is one of num_words + 1.
        key = row[live] * (num_words + 1) + move[live] + 1
        edge, which = torch.unique(key, return_inverse=True)
        parent, word = edge // (num_words + 1), edge % (num_words + 1) - 1
        row[live] = model.move(stacks, parent, word)[which]
        parents.append(parent)
        words.append(word)
        paths.append((live, edges + which))
        edges += len(edge)
    factor = log_moves(model, stacks, torch.cat(parents), torch.cat(words))
    log_p = factor.new_zeros(len(row))
    for live, path in paths:
        log_p = log_p.index_add(0, live, factor[path])
    return log_p, row


def log_moves(
    model: GenerativeModel, stacks: Stacks, row: Tensor, word: Tensor
) -> Tensor:
    """Return the log-probability of one move a stack: a word, or REDUCE if negative.

    Returns:
        Nats, (R,) float64; ``-inf`` if the move cannot be made.
    """
    log_shift, log_reduce = model.log_actions(stacks, row)
    (shifts,) = (word >= 0).nonzero(as_tuple=True)
    (reduces,) = (word < 0).nonzero(as_tuple=True)
    spoken = log_shift[shifts] + model.log_word(stacks, row[shifts], word[shifts])
    result = torch.zeros_like(log_shift)
    result = result.index_copy(0, shifts, spoken)
    return result.index_copy(0, reduces, log_reduce[reduces])
