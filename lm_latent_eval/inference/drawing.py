"""Draws from rows of probabilities, by inverting their distribution functions."""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import widened


def invert_cdf(prob: Tensor, u: Tensor) -> Tensor:
    """Draw from the distribution of each row.

    Args:
        prob: Unnormalised probabilities, (..., N); each row has some that are positive.
        u: A number of (0, 1) each, where they are, (...).

    Returns:
        Columns of positive probability, (...).

    Example:
        >>> prob = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0]])
        >>> invert_cdf(prob, torch.tensor([0.2, 0.999], dtype=torch.float64))
        tensor([0, 1])
    """
    mass = widened(prob).cumsum(-1)
    # Below the total despite rounding, so that no column after the last is drawn.
    below = torch.nextafter(mass[..., -1], mass.new_zeros(()))
    target = torch.minimum(u * mass[..., -1], below)
    return torch.searchsorted(mass, target[..., None].contiguous(), right=True)[..., 0]
