"""An accelerator that is not there: CPU tensors that claim to lie on ``sim:0``.

What would fail on a GPU fails here, on any machine: an operation that is given tensors
of two devices, a tensor made on the CPU out of habit, a conversion to numpy without a
copy, a copy to the CPU that is read before it is there. As on CUDA, tensors without
dimensions and CPU indices are let through. Numbers are the CPU's, so whatever differs
was computed from something else.

What makes a GPU idle is counted: launches of operations, each of which costs the host
some microseconds however small it is, and synchronisations, where the host waits for a
value, a size or a copy before it can go on.

    with simulated_device() as work:
        model.to("sim:0")(torch.ones(3, device="sim:0"))
    work.num_launches, work.num_waits, work.waits.most_common(5)

With ``float64=False`` it has no float64 either, as Apple's ``mps`` has none.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from unittest import SkipTest, mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lm_latent_eval
from lm_latent_eval import devices

SIMULATED = "sim:0"

INDEXING = {
    f"aten::{name}" for name in ("index", "index_put", "index_put_", "_index_put_impl_")
}
"""Operations whose indices may lie on the CPU."""
PACKING = {"aten::_pack_padded_sequence", "aten::_pad_packed_sequence"}
"""Operations that take and give lengths on the CPU."""
WAITING = {
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "bincount", "equal", "is_nonzero", "masked_select"),
        *("nonzero", "repeat_interleave", "unique_consecutive", "unique_dim"),
        *("_unique", "_unique2"),
    )
}
"""Operations whose value, or the size of whose result, the host has to know."""
PACKAGE = str(Path(lm_latent_eval.__file__).parent)


@dataclass
class Work:
    """What a device was asked for."""

    launches: Counter[str] = field(default_factory=Counter)
    """Operations by name, without views, which launch nothing."""
    waits: Counter[str] = field(default_factory=Counter)
    """Synchronisations of the host with the device, copies either way among them, by
    what was asked for and the line of the package that asked."""

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def waited(self, what: str) -> None:
        frame = sys._getframe(1)
        while frame.f_back and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self.waits[f"{what} in {place}"] += 1


work = Work()
"""Of the device; made anew by each ``simulated_device``."""


@contextlib.contextmanager
def simulated_device(*, float64: bool = True) -> Iterator[Work]:
    """Offer ``sim:0`` to what runs inside, and count what it is asked for.

    Where this version of torch cannot have such a device, the test is skipped.
    """
    global work
    work = Work()
    register()
    with (
        mock.patch.object(torch, "tensor", placed(torch.tensor)),
        mock.patch.object(torch, "as_tensor", placed(torch.as_tensor)),
        # Tensors of subclasses cannot be made in inference mode; without gradients it
        # does the same.
        mock.patch.object(torch._C, "_InferenceMode", without_gradients),
        # A thread of the device's own would compute gradients outside of this.
        torch.autograd.set_multithreading_enabled(False),
        mock.patch.object(devices, "WITHOUT_FLOAT64", {"mps"} if float64 else {"sim"}),
        Simulation(),
    ):
        yield work


def without_gradients(on):
    return torch.set_grad_enabled(torch.is_grad_enabled() and not on)


@cache
def register() -> None:
    """Teach torch the name of the device; it can learn one such name a process."""
    try:
        from torch.utils.backend_registration import (
            _setup_privateuseone_for_python_backend as setup,
        )
    except ImportError as err:
        raise SkipTest("a simulated device needs torch 2.10 or later") from err
    setup("sim")
    # Gradient checkpointing asks every device that there is, wherever it computes.
    torch.sim.get_amp_supported_dtype = lambda: [torch.bfloat16]
    # Forking random numbers asks every device for its own: there are none here.
    torch.sim.get_rng_state = lambda device=None: torch.get_rng_state()
    torch.sim.set_rng_state = lambda state, device=None: None


def is_simulated(device) -> bool:
    return device is not None and torch.device(device).type == "sim"


def placed(make):
    """Let ``torch.tensor`` and the like make tensors on the device, by a copy."""

    def made(data, *args, device=None, **kwargs):
        if not is_simulated(device):
            return make(data, *args, device=device, **kwargs)
        there = isinstance(data, SimulatedTensor)
        return (data if there else make(data, *args, **kwargs)).to(device)

    return made


class SimulatedTensor(torch.Tensor):
    """A tensor on the device; ``numbers`` lie on the CPU."""

    # Only operations count, not the functions that lead to them.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers):
        if numbers.dtype is torch.float64 and "sim" in devices.WITHOUT_FLOAT64:
            raise TypeError(f"{SIMULATED} has no float64: use float32, or the CPU")
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device(SIMULATED),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            requires_grad=numbers.requires_grad,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self, **_):
        return f"{self.numbers!r} on {SIMULATED}"

    def __getitem__(self, index):
        # A list is made a tensor where no operation is seen.
        places = index if isinstance(index, tuple) else (index,)
        tensors = (torch.tensor(i) if isinstance(i, list) else i for i in places)
        return super().__getitem__(tuple(tensors))

    def tolist(self):
        work.waited("tolist")
        return self.numbers.tolist()

    def numpy(self, **_):
        raise TypeError(f"can't convert {SIMULATED} device type tensor to numpy")

    __array__ = numpy

    def new_tensor(self, data, *, dtype=None, device=None):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or SIMULATED)


class Simulation(TorchDispatchMode):
    """Takes over operations that make a tensor on the device or are given one."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled, and looking for it takes a tenth

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if SimulatedTensor in types or is_simulated(kwargs.get("device")):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


SEVERAL = (list, tuple)
NUMBERS = attrgetter("numbers")


def mapped(kind, change, value):
    """Change what is of a kind, like torch's ``tree_map_only``, which is far slower."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, SEVERAL):
        return type(value)([mapped(kind, change, part) for part in value])
    return value


def tensors_of(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, SEVERAL):
            yield from tensors_of(value)


def run(func, args, kwargs):
    """Do one operation on the CPU, if a device would have done it."""
    name, target = func._schema.name, kwargs.get("device")
    tensors = [*tensors_of((*args, *kwargs.values()))]
    ours = [tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)]
    there = bool(ours) if target is None else is_simulated(target)
    on_cpu = mapped(SimulatedTensor, NUMBERS, args)
    options = {name: mapped(SimulatedTensor, NUMBERS, v) for name, v in kwargs.items()}
    if not func.is_view:
        work.launches[name] += 1
    if name == "aten::copy_":  # between devices, in either direction
        there = isinstance(args[0], SimulatedTensor)
        if there != isinstance(args[1], SimulatedTensor):
            count_copy(there, args[2:] == (True,) or kwargs.get("non_blocking"))
        func(*on_cpu, **options)
        return args[0]
    if name == "aten::_to_copy":
        waits_not = options.pop("non_blocking", False)
        options.pop("device", None)
        if there != bool(ours):
            count_copy(there, waits_not)
        copy = func(*on_cpu, **options)
        return SimulatedTensor(copy) if there else copy

    if ours and name not in INDEXING | PACKING:
        refuse_mixture(name, tensors)
    if ours and (name in WAITING or (name in INDEXING and is_sized(args[1]))):
        work.waited(name.removeprefix("aten::"))
    elif ours and name in INDEXING and len(ours) < len(tensors):
        work.waited("an index of the host")
    if name in CELLS:
        return mapped(torch.Tensor, SimulatedTensor, CELLS[name](*on_cpu))
    if target is not None:
        options["device"] = torch.device("cpu")
    found = func(*on_cpu, **options)
    if name in PACKING:
        return SimulatedTensor(found[0]), found[1]
    if not there or name == "aten::_local_scalar_dense":
        return found
    known = {id(tensor.numbers): tensor for tensor in ours}  # of in-place operations

    def put(value):
        return known[id(value)] if id(value) in known else SimulatedTensor(value)

    return mapped(torch.Tensor, put, found)


def count_copy(there: bool, goes_on: bool) -> None:
    """Count a copy, for which the host waits unless it says that it goes on."""
    if not goes_on:
        work.waited("a copy")
    elif not there:
        raise RuntimeError(
            f"a non_blocking copy from {SIMULATED} to the CPU returns before the "
            "numbers are there: leave non_blocking out"
        )


def is_sized(indices) -> bool:
    """Whether the device alone knows how many places are meant."""
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def refuse_mixture(name, tensors) -> None:
    if any(t.dim() > 0 and not isinstance(t, SimulatedTensor) for t in tensors):
        given = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {name} was given {given}"
        )


# -- cells that devices compute in one operation, and the CPU does not ----------------


def lstm_cell(from_input, from_hidden, cell, *biases):
    gates = sum((bias for bias in biases if bias is not None), from_input + from_hidden)
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def lstm_cell_backward(of_hidden, of_cell, before, cell, gates, has_bias):
    none = torch.zeros_like(gates)
    backward = torch.ops.aten._thnn_differentiable_lstm_cell_backward
    found = backward(of_hidden, of_cell, gates, none, None, None, before, cell)
    return found[0], found[2], found[0].sum(0) if has_bias else None


CELLS = {
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}
"""Operation -> what it does, on the CPU."""
