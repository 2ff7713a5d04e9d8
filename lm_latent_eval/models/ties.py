"""Ties in a search, which go by index and not by what rounding makes of them."""

from __future__ import annotations

from torch import Tensor

GRID = 2.0**-10
"""Nats: a hundred times what float32 scores of a text differ by in another batch."""


def ranks(score: Tensor) -> Tensor:
    """Return what latents are compared by: their scores on a grid.

    Latents may tie, such as two that differ in nothing a model looks at. Their scores
    then differ by rounding, which is another in another batch; on a grid they are
    equal, and their order decides. Rounding still does where a score falls between two
    points of the grid: one time of a hundred.

    Args:
        score: Nats, ``-inf`` for what is impossible.

    Example:
        >>> import torch
        >>> ranks(torch.tensor([-3.00001, -3.0, -3.1])).tolist()
        [-3072.0, -3072.0, -3174.0]
    """
    return (score / GRID).round()
