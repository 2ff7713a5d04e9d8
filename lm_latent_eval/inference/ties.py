"""Tie-breaking in beam search by index, robust to rounding."""

from __future__ import annotations

import torch
from torch import Tensor

GRID = 2.0**-10
"""Nats: a hundred times what float32 scores of a text differ by in another batch."""
LEAST = -(2.0**34)
"""The rank of what is impossible, behind all that is above -2^24 nats: more than those
of a million tokens. Rank and place of fewer than 2^29 options fit into one int64."""


def ranks(score: Tensor) -> Tensor:
    """Return what latents are compared by: their scores on a grid.

    Latents may tie, such as two that differ in nothing a model looks at. Their scores
    then differ by rounding, which is another in another batch; on a grid they are
    equal, and their order decides. Rounding still does where a score falls between two
    points of the grid: one time of a hundred.

    Args:
        score: Nats, ``-inf`` for what is impossible.

    Example:
        >>> ranks(torch.tensor([-3.00001, -3.0, -3.1])).tolist()
        [-3072.0, -3072.0, -3174.0]
    """
    return (score / GRID).round()


def best_of(score: Tensor, number: int) -> Tensor:
    """Return the places of the best scores of each row, the best one first.

    Of those that tie the first ones come first.

    Args:
        score: Nats, (R, N).
        number: How many, at most N.

    Example:
        >>> best_of(torch.tensor([[-3.00001, -3.1, -3.0, -2.0]]), 3)
        tensor([[3, 0, 2]])
    """
    size = score.shape[-1]
    place = torch.arange(size, device=score.device)
    rank = ranks(score).clamp_min(LEAST).long()
    return (rank * size - place).topk(number).indices
