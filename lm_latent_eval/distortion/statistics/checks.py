"""Validation of columns of numbers."""

import torch
from torch import Tensor

from lm_latent_eval.estimators.checks import checked_floating


def checked_log_p(log_p: Tensor, name: str) -> Tensor:
    """Return logarithms of probabilities, zero among them, or raise.

    Args:
        log_p: What a caller gave: nats, shape ``(N,)``; ``-inf`` is a probability of 0.
        name: What the caller calls it.

    Raises:
        TypeError: If it is not a floating-point tensor.
        ValueError: If it is not of that shape, or an entry is NaN or above 0.

    Example:
        >>> checked_log_p(torch.tensor([-1.0, 0.5]), "log_p")
        Traceback (most recent call last):
        ...
        ValueError: log_p[1] is 0.5; expected at most 0
    """
    if checked_floating(log_p, name).ndim != 1:
        raise ValueError(f"{name} must have shape (N,); got {tuple(log_p.shape)}")
    bad = (~(log_p <= 0)).nonzero()
    if len(bad):
        index = int(bad[0])
        raise ValueError(
            f"{name}[{index}] is {log_p[index].item()}; expected at most 0"
        )
    return log_p


def checked_integers(values: Tensor, name: str, *, count: int, least: int) -> Tensor:
    """Return whole numbers, one a sequence, or raise.

    Args:
        values: What a caller gave, shape ``(N,)``.
        name: What the caller calls it.
        count: N, of how many sequences.
        least: What each must be.

    Raises:
        TypeError: If it is not a tensor of integers.
        ValueError: If it is not of that shape, or an entry is smaller.

    Example:
        >>> checked_integers(torch.tensor([3, 0]), "num_tokens", count=2, least=1)
        Traceback (most recent call last):
        ...
        ValueError: num_tokens[1] is 0; expected at least 1
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(values).__name__}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of integers; got {values.dtype}")
    if values.shape != (count,):
        raise ValueError(
            f"{name} must have shape ({count},), one a sequence; got "
            f"{tuple(values.shape)}"
        )
    bad = (values < least).nonzero()
    if len(bad):
        index = int(bad[0])
        raise ValueError(
            f"{name}[{index}] is {values[index].item()}; expected at least {least}"
        )
    return values
