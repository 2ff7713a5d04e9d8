"""Device handling: copies between host and device, and the widest floating type.

Log-probabilities are float64 wherever a device has it. Apple's ``mps`` has none, and
there they are float32; what its host adds up afterwards is float64 again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that compute in float32 at most."""


def widest_float(device: torch.device | str) -> torch.dtype:
    """Return float64 where a device has it, else float32.

    Example:
        >>> widest_float("cpu"), widest_float("mps")
        (torch.float64, torch.float32)
    """
    lacking = torch.device(device).type in WITHOUT_FLOAT64
    return torch.float32 if lacking else torch.float64


def wide_zeros(shape: Sequence[int], device: torch.device | str) -> Tensor:
    """Return zeros in the widest type of a device.

    Example:
        >>> wide_zeros([2], "cpu")
        tensor([0., 0.], dtype=torch.float64)
    """
    return torch.zeros(shape, dtype=widest_float(device), device=device)


def widened(tensor: Tensor) -> Tensor:
    """Return numbers in the widest type of the device that they are on.

    Example:
        >>> widened(torch.tensor([1, 2]))
        tensor([1., 2.], dtype=torch.float64)
    """
    return tensor.to(widest_float(tensor.device))


def in_float64(tensor: Tensor) -> Tensor:
    """Return numbers in float64, on the host where their device has none.

    Example:
        >>> in_float64(torch.tensor(0.5))
        tensor(0.5000, dtype=torch.float64)
    """
    if widest_float(tensor.device) is torch.float64:
        return tensor.double()
    return tensor.cpu().double()


def check_width(dtype: torch.dtype | None, device: torch.device | str) -> None:
    """Refuse to compute in float64 where there is none.

    Raises:
        ValueError: If that is asked for.
    """
    if dtype is torch.float64 and widest_float(device) is not torch.float64:
        raise ValueError(
            f"dtype=float64: {torch.device(device).type} has no float64; leave dtype "
            "out, or give device=cpu"
        )


def moved(module: ModuleT, device: torch.device | str) -> ModuleT:
    """Move a module to a device, in float32 where it was wider than the device is."""
    if widest_float(device) is not torch.float64:
        module._apply(  # type: ignore[no-untyped-call]
            lambda t: t.float() if t.dtype is torch.float64 else t
        )
    return module.to(device)


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device, which uses it after what it has to do, or back.

    CUDA takes ordinary memory before the call returns, so that it may be changed at
    once. On MPS it may not: there the host waits, as it does for what is copied back,
    which it could otherwise read too early. A device without float64 is given float32.

    Example:
        >>> sent(torch.tensor([1, 2]), "cpu")
        tensor([1, 2])
    """
    if tensor.device == device:
        return tensor
    if tensor.dtype is torch.float64:
        tensor = tensor.to(widest_float(device))
    waits = torch.device(device).type in {"cpu", "mps"}
    return tensor.to(device, non_blocking=not waits)


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors to the host, for which it waits once, whatever their types.

    Tensors of several types that have gradients are copied one by one.

    Example:
        >>> fetched(torch.tensor([1, 2]), torch.tensor(0.5))
        (tensor([1, 2]), tensor(0.5000))
    """
    there = [tensor for tensor in tensors if not tensor.is_cpu]
    if not there:
        return tensors
    parts = [tensor.flatten() for tensor in there]
    mixed = len({tensor.dtype for tensor in there}) > 1
    if mixed and any(tensor.requires_grad for tensor in there):
        return tuple(tensor.cpu() for tensor in tensors)  # bytes have none
    if mixed:
        parts = [_bytes(part) for part in parts]
    here = torch.cat(parts).cpu().split([len(part) for part in parts])
    if mixed:  # a copy begins where numbers of its type may
        pairs = zip(here, there, strict=True)
        here = tuple(part.clone().view(tensor.dtype) for part, tensor in pairs)
    copies = iter(here)
    return tuple(
        tensor if tensor.is_cpu else next(copies).view(tensor.shape)
        for tensor in tensors
    )


def _bytes(tensor: Tensor) -> Tensor:
    """Return the numbers of a vector as bytes."""
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def sent_uniforms(uniforms: Tensor, device: torch.device | str) -> Tensor:
    """Copy float64 numbers of (0, 1) to a device, where they are below 1 as well.

    Example:
        >>> nearly_1 = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
        >>> bool(sent_uniforms(nearly_1, "cpu") < 1), bool(nearly_1.float() < 1)
        (True, False)
    """
    width = widest_float(device)
    if width is not torch.float64:
        uniforms = uniforms.clamp_max(1 - torch.finfo(width).eps / 2)
    return sent(uniforms, device)
