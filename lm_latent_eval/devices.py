"""Copies between the host and an accelerator, with as little waiting as can be."""

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


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors of one type to the host, for which it waits once for all of them.

    Example:
        >>> fetched(torch.tensor([1, 2]), torch.tensor(3))
        (tensor([1, 2]), tensor(3))
    """
    if all(tensor.is_cpu for tensor in tensors):
        return tensors
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return tuple(
        part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)
    )
