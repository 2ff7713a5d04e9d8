"""Rotations of binary trees: Metropolis-Hastings moves ((A B) C) <-> (A (B C)).

A tree over n words has n - 2 constituents that are inside another one and not a word,
and each can be rotated in one way. So a rotation drawn evenly is as probable as its
reversal, and some rotations lead from any tree to any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, wide_zeros
from lm_latent_eval.models.rnng.trees import Trees, count_ends, from_ends
from lm_latent_eval.text.batch import TokenBatch


def rotated(
    trees: Trees, batch: TokenBatch, words: Tensor, uniform: Tensor
) -> tuple[Trees, Tensor]:
    """Rotate one constituent of each tree; trees of two words stay as they are.

    Args:
        trees: Whole trees, K a text.
        batch: The texts.
        words: n of each text, on the host, (B,).
        uniform: Which constituent, on the host, (B, K).

    Returns:
        Trees on the host, and 0, how much more probable the reverse is, in nats, (B, K)
        float64.
    """
    targets, length = batch.on_host
    ends = count_ends(Trees(*fetched(*trees)), words)
    change = torch.zeros_like(ends)
    rows = ends.flatten(0, 1).tolist()
    sizes = words.repeat_interleave(ends.shape[1]).tolist()
    for row, n, u, of in zip(
        rows, sizes, uniform.flatten().tolist(), change.flatten(0, 1), strict=True
    ):
        choices = _rotations(row, n)
        if choices:
            fewer, more = choices[int(u * len(choices))]
            of[fewer] -= 1
            of[more] += 1
    trees = from_ends(ends + change, length, targets.shape[1])
    return trees, wide_zeros(uniform.shape, batch.length.device)


def _rotations(ends: list[int], n: int) -> list[tuple[int, int]]:
    """List rotations of a tree: which end each takes away, and which it adds.

    Args:
        ends: Constituents by the word after their last one.
        n: Words.
    """
    found = []
    # First word, word after the last, and where the right part begins; None: a word.
    stack: list[tuple[int, int, int | None]] = []
    for last in range(n):
        stack.append((last, last + 1, None))
        for _ in range(ends[last + 1]):
            right, left = stack.pop(), stack.pop()
            if left[2] is not None:  # ((A B) C): B goes to C
                found.append((left[1], right[1]))
            if right[2] is not None:  # (A (B C)): B goes to A
                found.append((right[1], right[2]))
            stack.append((left[0], right[1], right[0]))
    return found
