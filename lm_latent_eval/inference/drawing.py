"""Inverse-transform sampling of categorical and normal variables."""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import sent_uniforms, widened
from lm_latent_eval.latent import Uniforms

MODEL_LANES = 3
"""Random numbers of a decision that are the model's: the last is left to inference."""


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


def standard_normals(
    uniforms: Uniforms, number: int, device: torch.device | str
) -> Tensor:
    """Draw independent standard normal numbers.

    Args:
        uniforms: Random numbers on the host, step -> (B, K, 4): as many steps are asked
            as it takes, from the first.
        number: D, how many a latent.
        device: Where they are wanted.

    Returns:
        (B, K, D), in the widest type of the device.

    Example:
        >>> half = lambda step: torch.full((1, 2, 4), 0.5, dtype=torch.float64)
        >>> standard_normals(half, 4, "cpu").tolist()
        [[[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]
    """
    steps = range(-(-number // MODEL_LANES))
    u = torch.cat([uniforms(step)[..., :MODEL_LANES] for step in steps], -1)
    normal: Tensor = torch.special.ndtri(sent_uniforms(u[..., :number], device))
    return normal
