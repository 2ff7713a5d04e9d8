"""Validation of log-weights, finite values and counts."""

import numpy as np
import torch
from torch import Tensor


def checked_floating(value: object, name: str) -> Tensor:
    """Return ``value``, or raise if it is not a real floating-point tensor.

    Args:
        value: What the caller passed.
        name: What the caller calls it.

    Returns:
        The same tensor.

    Raises:
        TypeError: If it is anything else.

    Example:
        >>> checked_floating([0.5], "log_w")
        Traceback (most recent call last):
        ...
        TypeError: log_w must be a floating-point tensor; got list
    """
    if not isinstance(value, Tensor):
        found = type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor; got {found}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor; got {value.dtype}")
    return value


def checked_weights(log_w: Tensor) -> int:
    """Return K, or raise with the first offending index.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``; ``-inf`` is a weight of zero.

    Returns:
        K, the size of the last dimension.

    Raises:
        TypeError: If ``log_w`` is not a tensor of a real floating-point dtype.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> checked_weights(torch.zeros(2, 3))
        3
        >>> checked_weights(torch.tensor([0.0, torch.inf]))
        Traceback (most recent call last):
        ...
        ValueError: log_w[1] is inf; expected finite or -inf. Did the proposal return...
    """
    checked_floating(log_w, "log_w")
    if log_w.ndim == 0 or log_w.shape[-1] == 0:
        raise ValueError(
            f"log_w must have shape (..., K) with K >= 1; got {tuple(log_w.shape)}"
        )
    expected = "finite or -inf. Did the proposal return log q = -inf?"
    refuse_first(~(log_w < torch.inf), log_w, "log_w", expected)
    return int(log_w.shape[-1])


def checked_finite(values: Tensor, name: str) -> None:
    """Raise unless it is a floating-point tensor of finite numbers, one or more."""
    if checked_floating(values, name).numel() == 0:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: nothing to compute")
    refuse_first(~values.isfinite(), values, name, "finite")


def refuse_first(bad: Tensor, values: Tensor, name: str, expected: str) -> None:
    """Raise a ``ValueError`` that names the first bad value, if there is one.

    Args:
        bad: Where values are bad, of their shape.
        values: What a caller gave.
        name: What the caller calls them.
        expected: What each should have been.
    """
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}{list(where)} is {values[where].item()}; expected {expected}"
        )


def checked_count(value: object, name: str) -> None:
    """Raise unless this is a whole number, at least 1.

    Args:
        value: What a caller gave.
        name: What the caller calls it.

    Raises:
        ValueError: If it is anything else, 2.0 included.

    Example:
        >>> checked_count(2.0, "num_bins")
        Traceback (most recent call last):
        ...
        ValueError: num_bins must be a whole number, at least 1; got 2.0
    """
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}")
