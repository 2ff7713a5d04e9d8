"""Copies from the host to an accelerator that the host does not wait for."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor of the host to a device, which uses it after what it has to do.

    CUDA takes ordinary memory before the call returns, so that it may be changed at
    once. On MPS it may not: there the host waits.

    Example:
        >>> sent(torch.tensor([1, 2]), "cpu")
        tensor([1, 2])
    """
    return tensor.to(device, non_blocking=torch.device(device).type != "mps")
