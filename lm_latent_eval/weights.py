"""Floating types of weights, which must agree within a file."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FLOATS = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""Types that weights can have, by name."""


def shared_type(weights: Mapping[str, Tensor]) -> torch.dtype:
    """Return the floating type of all weights.

    Raises:
        ValueError: If one has another type than the others, or one that is none to
            compute in; what it was cast to would be another number.
    """
    first, *others = weights
    for name in weights:
        if weights[name].dtype not in FLOATS.values():
            raise ValueError(
                f"tensor {name!r} is {weights[name].dtype}; expected one of "
                f"{', '.join(FLOATS)}"
            )
    for name in others:
        if weights[name].dtype != weights[first].dtype:
            raise ValueError(
                f"tensor {name!r} is {weights[name].dtype}, but {first!r} is "
                f"{weights[first].dtype}: all weights are of one type"
            )
    return weights[first].dtype
