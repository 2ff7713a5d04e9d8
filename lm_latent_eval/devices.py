"""Devices: copies between host and device, floating types, and batches that fit.

Log-probabilities are float64, except on devices without it (Apple's ``mps``), where
they are float32; sums on the host are float64 again. Batch sizes that fit into a
device's memory are found by trial.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that compute in float32 at most."""


def widest_float(device: torch.device | str) -> torch.dtype:
    """Widest floating type of a device, float64 or float32.

    Example:
        >>> widest_float("cpu"), widest_float("mps")
        (torch.float64, torch.float32)
    """
    lacking = torch.device(device).type in WITHOUT_FLOAT64
    return torch.float32 if lacking else torch.float64


def wide_zeros(shape: Sequence[int], device: torch.device | str) -> Tensor:
    """Zeros in the widest type of a device.

    Example:
        >>> wide_zeros([2], "cpu")
        tensor([0., 0.], dtype=torch.float64)
    """
    return torch.zeros(shape, dtype=widest_float(device), device=device)


def widened(tensor: Tensor) -> Tensor:
    """Numbers in the widest type of their device.

    Example:
        >>> widened(torch.tensor([1, 2]))
        tensor([1., 2.], dtype=torch.float64)
    """
    return tensor.to(widest_float(tensor.device))


def in_float64(tensor: Tensor) -> Tensor:
    """Numbers in float64, on the host if their device has none.

    Example:
        >>> in_float64(torch.tensor(0.5))
        tensor(0.5000, dtype=torch.float64)
    """
    if widest_float(tensor.device) is torch.float64:
        return tensor.double()
    return tensor.cpu().double()


def check_width(dtype: torch.dtype | None, device: torch.device | str) -> None:
    """Refuse float64 on a device without it.

    Raises:
        ValueError: If ``dtype`` is float64 and the device lacks it.
    """
    if dtype is torch.float64 and widest_float(device) is not torch.float64:
        raise ValueError(
            f"dtype=float64: {torch.device(device).type} has no float64; leave dtype "
            "out, or give device=cpu"
        )


def moved(module: ModuleT, device: torch.device | str) -> ModuleT:
    """Move a module to a device, in float32 if the device lacks the module's type.

    Recurrent layers keep the type of their weights: otherwise cuDNN rounds float32 to
    TF32, which moves log-probabilities by a relative 2e-5.
    """
    if torch.device(device).type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    if widest_float(device) is not torch.float64:
        module._apply(  # type: ignore[no-untyped-call]
            lambda t: t.float() if t.dtype is torch.float64 else t
        )
    return module.to(device)


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without waiting for it, or back.

    CUDA reads ordinary memory before the call returns, so it may be changed at once. On
    MPS it may not, so the host waits, as it does for copies back. Devices without
    float64 get float32.

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
    """Copy tensors of any types to the host with a single wait.

    Tensors of several types that have gradients are copied one by one.

    Example:
        >>> fetched(torch.tensor([1, 2]), torch.tensor(0.5))
        (tensor([1, 2]), tensor(0.5000))
    """
    remote = [tensor for tensor in tensors if not tensor.is_cpu]
    if not remote:
        return tensors
    parts = [tensor.flatten() for tensor in remote]
    mixed = len({tensor.dtype for tensor in remote}) > 1
    if mixed and any(tensor.requires_grad for tensor in remote):
        return tuple(tensor.cpu() for tensor in tensors)  # bytes have none
    if mixed:
        plain = torch.contiguous_format
        parts = [p.clone(memory_format=plain).view(torch.uint8) for p in parts]
    local = torch.cat(parts).cpu().split([len(part) for part in parts])
    if mixed:  # a clone is aligned for its type
        pairs = zip(local, remote, strict=True)
        local = tuple(part.clone().view(tensor.dtype) for part, tensor in pairs)
    copies = iter(local)
    return tuple(
        tensor if tensor.is_cpu else next(copies).view(tensor.shape)
        for tensor in tensors
    )


def sent_uniforms(uniforms: Tensor, device: torch.device | str) -> Tensor:
    """Copy float64 numbers of (0, 1) to a device, staying below 1.

    Example:
        >>> nearly_1 = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
        >>> bool(sent_uniforms(nearly_1, "cpu") < 1), bool(nearly_1.float() < 1)
        (True, False)
    """
    width = widest_float(device)
    if width is not torch.float64:
        uniforms = uniforms.clamp_max(1 - torch.finfo(width).eps / 2)
    return sent(uniforms, device)


T = TypeVar("T")
R = TypeVar("R")

SCORES = 1 << 25
"""Largest number of scores (rows x tokens x vocabulary) of a network held at a time."""
MOST_ROWS = 64
"""Default number of rows read together."""
FEW_WEIGHTS = 2_000_000
"""Number of weights below which a second thread slows a network, by
``benchmarks/throughput.py --threads``."""

logger = logging.getLogger(__name__)


def use_one_thread(model: nn.Module, device: torch.device) -> None:
    """Compute a small network on one processor by one thread, with a log message.

    Threads that wait for each other keep the processor busy: for operations this small
    they gain nothing, and cost many times the work on a busy machine. A number of
    threads set by the environment is kept.
    """
    if device.type != "cpu" or {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & {*os.environ}:
        return
    if torch.get_num_threads() == 1:
        return
    weights = sum(parameter.numel() for parameter in model.parameters())
    if weights < FEW_WEIGHTS:
        torch.set_num_threads(1)
        # lm-eval prints what its own loggers inform of, and of others warnings alone.
        logging.getLogger("lm_eval.latent").info(
            "one thread: a network of %s weights gains nothing by more "
            "(OMP_NUM_THREADS sets another number)",
            f"{weights:,}",
        )


def out_of_memory(err: Exception) -> bool:
    """Whether the memory of a device or the host ran out.

    Example:
        >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shapes"))
        (True, False)
    """
    if isinstance(err, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(err, RuntimeError) and "DefaultCPUAllocator" in str(err)


@dataclass
class MemoryLimit:
    """Largest batches that fitted into a device's memory."""

    most: float = math.inf
    """Largest items x size."""

    def holds(self, size: int) -> float:
        """Number of items of a size to try at once, at least one."""
        return max(1.0, self.most / max(1, size))

    def in_batches(
        self,
        items: Sequence[T],
        most: int,
        work: Callable[[Sequence[T]], R],
        size: Callable[[T], int],
        refusal: Callable[[T], ValueError],
    ) -> Iterator[tuple[Sequence[T], R]]:
        """Do work in batches; if memory runs out, in batches of half as many.

        Later batches start at the size that fitted.

        Args:
            items: Items.
            most: Largest number of items of a batch.
            work: Function of a batch, which can be repeated.
            size: Size of an item, in proportion to its memory.
            refusal: Error to raise if a single item does not fit.

        Yields:
            Batches, in order, and their results.

        Raises:
            ValueError: As ``refusal`` says.

        Example:
            >>> def work(items):
            ...     if len(items) > 2:
            ...         raise torch.OutOfMemoryError
            ...     return sum(items)
            >>> memory = MemoryLimit()
            >>> list(memory.in_batches(range(5), 4, work, lambda item: 1, ValueError))
            [(range(0, 2), 1), (range(2, 4), 5), (range(4, 5), 4)]
            >>> memory.holds(1)
            2.0
        """
        failed = 0
        while items:
            batch = items[:most]
            largest = max(map(size, batch))
            batch = batch[: int(min(most, self.holds(largest)))]
            try:
                result = work(batch)
            except (RuntimeError, MemoryError) as err:
                if not out_of_memory(err):
                    raise
                if len(batch) == 1:
                    raise refusal(batch[0]) from err
            else:
                if failed:
                    logger.warning(
                        "out of memory with %d at a time; %d fit, and are taken at a "
                        "time from here on",
                        failed,
                        len(batch),
                    )
                failed = 0
                yield batch, result
                items = items[len(batch) :]
                continue
            # Outside the handler, which would keep the batch's memory.
            failed = failed or len(batch)
            self.most = len(batch) // 2 * max(1, largest)


def fitting(num_tokens: int, vocab_size: int, most: int = MOST_ROWS) -> int:
    """Initial number of rows for a network.

    Example:
        >>> fitting(10, 1000), fitting(1024, 50_257), fitting(10**6, 10**6)
        (64, 1, 1)
    """
    return max(1, min(most, SCORES // (num_tokens * vocab_size)))


FLOATS = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""Allowed types of weights, by name."""


def shared_type(weights: Mapping[str, Tensor]) -> torch.dtype:
    """Floating type of all weights.

    Raises:
        ValueError: If there are no weights, or their types are not floating or differ.
    """
    if not weights:
        raise ValueError("it holds no tensor")
    first = next(iter(weights))
    for name, weight in weights.items():
        if weight.dtype not in FLOATS.values():
            raise ValueError(
                f"tensor {name!r} is {weight.dtype}; expected one of "
                f"{', '.join(FLOATS)}"
            )
        if weight.dtype != weights[first].dtype:
            raise ValueError(
                f"tensor {name!r} is {weight.dtype}, but {first!r} is "
                f"{weights[first].dtype}: all weights are of one type"
            )
    return weights[first].dtype
