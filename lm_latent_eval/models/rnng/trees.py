r"""Binary trees over words, written as the actions that build them.

A tree over n words is one sequence of n SHIFTs and n - 1 REDUCEs, children before
their parent: ((a b) c) is S S R S R. Word by word it is the *number of REDUCEs before
each SHIFT*, z_1 = 0, z_2, ..., z_n, and those after the last. A constituent is reduced
right after its last word, so these numbers also count the constituents of two words or
more by where they end:

.. math:: z_{t+1} = |\{(i, j) \in z : j = t, i < j\}|

Sequences that stop earlier are prefixes of trees; they are written the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.latent import Description, Span

REDUCE, NOTHING = -1, -2
"""Moves other than words: build a constituent; padding after the last move."""


class Trees(NamedTuple):
    """Latents of a batch: B texts, K trees (or prefixes of trees) each, T tokens."""

    before: Tensor
    """Number of REDUCEs before each token, (B, K, T); 0 past the end."""
    after: Tensor
    """Number of REDUCEs after the last token, (B, K)."""


def num_trees(words: int) -> int:
    """Number of binary trees over words (a Catalan number)."""
    return math.comb(2 * (words - 1), words - 1) // words if words else 1


def described(words: Sequence[str], trees: Trees) -> Description:
    """Describe one tree or unfinished tree, (1, 1, T), over words.

    Example:
        >>> tree = Trees(torch.tensor([[[0, 0, 1]]]), torch.tensor([[1]]))
        >>> described(["the", "dog", "barks"], tree).text
        '((the dog) barks)'
    """
    before, stack = trees.before[0, 0].tolist(), list[tuple[int, str]]()
    last = sum(before[len(words) :]) + int(trees.after)
    spans = []
    for position, reduces in enumerate([*before[: len(words)], last]):
        for _ in range(reduces):
            _, right = stack.pop()
            start, left = stack.pop()
            stack.append((start, f"({left} {right})"))
            spans.append(Span(start, position, ""))
        stack += [(position, word) for word in words[position : position + 1]]
    return Description(" ".join(item for _, item in stack), tuple(spans), is_tree=True)


def moves(trees: Trees, tokens: Tensor, length: Tensor) -> Tensor:
    """Write trees as moves: word ids for SHIFTs, and ``REDUCE``.

    Args:
        trees: K trees of each of B texts.
        tokens: Word ids, (B, T).
        length: Tokens of each text, (B,).

    Returns:
        Shape (B, K, A), padded with ``NOTHING``.
    """
    batch, samples, num_tokens = trees.before.shape
    total = length[:, None] + trees.before.sum(-1) + trees.after
    size = int(total.max()) if total.numel() else 0
    position = torch.arange(size, device=tokens.device)
    result = torch.full((batch, samples, size + 1), NOTHING, device=tokens.device)
    result[..., :size].masked_fill_(position < total[..., None], REDUCE)
    token = torch.arange(num_tokens, device=tokens.device)
    shift = trees.before.cumsum(-1) + token
    shift = shift.masked_fill((token >= length[:, None])[:, None], size)
    result.scatter_(2, shift, tokens[:, None].expand_as(shift))
    return result[..., :size]


def count_ends(trees: Trees, words: Tensor) -> Tensor:
    """Count constituents by the word after their last one, (B, K, N + 1).

    Args:
        trees: Whole trees, with or without an end word.
        words: Words of each text without the end word, (B,); N is the largest.
    """
    size = int(words.max()) + 1
    before = F.pad(trees.before, (0, size))[..., :size]
    position = torch.arange(size, device=words.device)
    before = before.masked_fill((position > words[:, None])[:, None], 0)
    last = words[:, None, None].expand(*trees.after.shape, 1)
    return before.scatter_add(2, last, trees.after[..., None])


def from_ends(ends: Tensor, length: Tensor, num_tokens: int) -> Trees:
    ends = F.pad(ends, (0, max(num_tokens + 1 - ends.shape[-1], 0)))
    last = length[:, None, None].expand(*ends.shape[:2], 1)
    after = ends.gather(2, last)[..., 0]
    return Trees(ends.scatter(2, last, 0)[..., :num_tokens], after)


def score_constituents(ends: Tensor, words: Tensor, scores: Tensor) -> Tensor:
    """Sum the scores of every constituent of trees, single words included.

    Args:
        ends: ``count_ends`` of the trees, (B, K, N + 1).
        words: n of each text, (B,).
        scores: Scores of spans from word i to word j, both included, (B, N, N).

    Returns:
        Shape (B, K); ``-inf`` where ``ends`` describes no whole tree.
    """
    batch, samples, size = ends.shape
    text = torch.arange(batch, device=ends.device)[:, None].expand(batch, samples)
    position = torch.arange(size - 1, device=ends.device)
    inside = position < words[:, None]
    single = scores.diagonal(0, 1, 2).masked_fill(~inside, 0.0).sum(-1)
    total = single[:, None].expand(batch, samples)
    # Where each item on the stack begins.
    begin = ends.new_zeros(batch, samples, size + 1)
    height = ends.new_zeros(batch, samples)
    valid = ends[..., 0] == 0
    for j in range(size - 1):
        active = inside[:, j, None].expand(batch, samples)
        begin.scatter_(2, height[..., None], j)
        height = height + active.long()
        left = torch.where(active, ends[..., j + 1], 0)
        valid = valid & (left < height.clamp_min(1))
        left = left.minimum((height - 1).clamp_min(0))
        for r in range(int(left.max())):
            reducing = left > r
            height = height - reducing.long()
            first = begin.gather(2, (height - 1).clamp_min(0)[..., None])[..., 0]
            score = scores[text, first, torch.full_like(first, j)]
            total = total + score.masked_fill(~reducing, 0.0)
    valid = valid & ((height == 1) | (words == 0)[:, None])
    return total.masked_fill(~valid, -torch.inf)


Split = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Function (step, i, j, label), each (B, K) -> last word of the left part, both labels.
"""


def unfold(words: Tensor, label: Tensor, split: Split) -> Tensor:
    """Build trees from the root down, parents first and left before right.

    Args:
        words: n of each text, (B,).
        label: Label of the root for ``split``, (B, K).
        split: Where the constituent from word i to word j > i is divided. Its step m is
            the m-th division of a tree; its output is ignored for smaller trees.

    Returns:
        ``count_ends`` of the trees, (B, K, N + 1).
    """
    batch, samples = label.shape
    size = max(int(words.max()), 1)
    ends = label.new_zeros(batch, samples, size + 1)
    # Constituents still to be divided: first word, last word, label.
    waiting = label.new_zeros(3, batch, samples, size + 1)
    waiting[1, ..., 0] = (words - 1).clamp_min(0)[:, None]
    waiting[2, ..., 0] = label
    height = torch.ones_like(label)
    for m in range(size - 1):
        active = (m < words - 1)[:, None].expand(batch, samples)
        height = height - active.long()
        top = waiting.gather(3, height[None, ..., None].expand(3, -1, -1, 1))[..., 0]
        i, j, name = top.masked_fill(~active, 0)
        u, left, right = split(m, i, j, name)
        ends.scatter_add_(2, (j + 1)[..., None], active[..., None].long())
        for part in ((u + 1, j, right), (i, u, left)):
            for column, value in zip(waiting, part, strict=True):
                column.scatter_(2, height[..., None], value[..., None])
            height = height + (active & (part[0] < part[1])).long()
    return ends
