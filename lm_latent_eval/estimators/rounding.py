"""Ties: scores that differ by no more than rounding.

A score is a sum of one number a token, and rounded otherwise in another batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

ROUNDING = 2.0**-17
"""Nats a token, 7.6e-6: four units in the last place of a float32 from 16 to 32 nats.
Other batches were seen to move a token of the models here by a tenth of it."""


def tied(log_p: Sequence[float], num_tokens: Sequence[int]) -> list[int]:
    """Return the places of the best scores: several where rounding tells them apart.

    Args:
        log_p: Of each option, nats.
        num_tokens: How many tokens each score is a sum over; the longest one's rounding
            is that of all.

    Example:
        >>> tied([-3.0, -2.0, -2.00001], [5, 5, 5])
        [1, 2]
        >>> tied([-3.0, -2.0, -2.001], [5, 5, 5])
        [1]
    """
    within = ROUNDING * max(1, *num_tokens)
    best = max(log_p)
    return [n for n, one in enumerate(log_p) if one == best or best - one <= within]


def first_of_best(log_p: Tensor) -> Tensor:
    """Return the first place of each row whose score ties with the best.

    Args:
        log_p: Nats of one token, shape ``(..., N)``.

    Example:
        >>> import torch
        >>> first_of_best(torch.tensor([[-2.0, -1.000001, -1.0], [-1.0, -0.5, -3.0]]))
        tensor([1, 1])
    """
    best = log_p.amax(-1, keepdim=True)
    return (log_p >= best - ROUNDING).int().argmax(-1)
