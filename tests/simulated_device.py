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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lm_latent_eval
from lm_latent_eval.devices import WITHOUT_FLOAT64

SIMULATED = "sim:0"

_INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
}
"""Operations whose indices may lie on the CPU."""
_PACKING = {"aten::_pack_padded_sequence", "aten::_pad_packed_sequence"}
"""Operations that take and give lengths on the CPU."""
_WAITING = {
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "bincount", "equal", "is_nonzero", "masked_select"),
        *("nonzero", "repeat_interleave", "unique_consecutive", "unique_dim"),
        *("_unique", "_unique2"),
    )
}
"""Operations whose value, or the size of whose result, the host has to know."""
_PACKAGE = Path(lm_latent_eval.__file__).parent


@dataclass
class Work:
    """What a device was asked for."""

    launches: Counter[str] = field(default_factory=Counter)
    """Operations by name, without views, which launch nothing."""
    waits: Counter[str] = field(default_factory=Counter)
    """Synchronisations of the host with the device, copies either way among them, by
    what was asked for and the line of this package that asked."""

    @property
    def num_launches(self) -> int:
        """How many operations."""
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        """How many synchronisations."""
        return self.waits.total()

    def waited(self, what: str) -> None:
        """Count a synchronisation."""
        self.waits[f"{what} in {_line()}"] += 1


def _line() -> str:
    """Return the innermost line of the package, but for tests, that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if name := _in_package(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a caller"


@cache
def _in_package(file: str) -> str | None:
    path = Path(file)
    if _PACKAGE in path.parents:
        return str(path.relative_to(_PACKAGE))
    return None


_work = Work()
"""Of the device; made anew by each ``simulated_device``."""


@contextlib.contextmanager
def simulated_device(*, float64: bool = True) -> Iterator[Work]:
    """Offer ``sim:0`` to what runs inside, and count what it is asked for.

    Args:
        float64: Whether it can compute in that type; a ``TypeError`` says where it is
            asked to and cannot.

    Raises:
        unittest.SkipTest: If this version of torch cannot have such a device; pytest
            and unittest show it as a test that was skipped.
    """
    global _work
    _work = Work()
    _register()
    makers = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
    for name, make in makers.items():
        setattr(torch, name, _placed(make))
    # Tensors of subclasses cannot be made in inference mode; without gradients it
    # does the same.
    inference_mode = torch._C._InferenceMode
    vars(torch._C)["_InferenceMode"] = lambda on: torch.set_grad_enabled(
        torch.is_grad_enabled() and not on
    )
    before, _Tensor.float64 = _Tensor.float64, float64
    _say(float64)
    try:
        # A thread of the device's own would compute gradients outside of this.
        with (
            torch.autograd.set_multithreading_enabled(False),
            _Simulation(),  # type: ignore[no-untyped-call]
        ):
            yield _work
    finally:
        _Tensor.float64 = before
        _say(before)
        for name, make in makers.items():
            setattr(torch, name, make)
        vars(torch._C)["_InferenceMode"] = inference_mode


def _say(float64: bool) -> None:
    """Say whether the device has that type."""
    kind = torch.device(SIMULATED).type
    (WITHOUT_FLOAT64.discard if float64 else WITHOUT_FLOAT64.add)(kind)


@cache
def _register() -> None:
    """Teach torch the name of the device; it can learn one such name a process."""
    try:
        from torch.utils.backend_registration import (
            _setup_privateuseone_for_python_backend as setup,
        )
    except ImportError as err:
        raise SkipTest(
            f"torch {torch.__version__} has no devices in Python: the simulated one "
            "needs 2.10 or later"
        ) from err
    setup("sim")
    # Gradient checkpointing asks every device that there is, wherever it computes.
    vars(torch)["sim"].get_amp_supported_dtype = lambda: [torch.bfloat16]
    # Forking random numbers asks every device for its own: there are none here.
    vars(torch)["sim"].get_rng_state = lambda device=None: torch.get_rng_state()
    vars(torch)["sim"].set_rng_state = lambda state, device=None: None


def _is_simulated(device: Any) -> bool:
    return device is not None and torch.device(device).type == "sim"


def _placed(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``torch.tensor`` and the like make tensors on the device, by a copy."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_simulated(device):
            return make(data, *args, device=device, **kwargs)
        there = isinstance(data, _Tensor)
        return (data if there else make(data, *args, **kwargs)).to(device)

    return made


class _Tensor(torch.Tensor):
    """A tensor on the device; ``numbers`` lie on the CPU."""

    numbers: torch.Tensor
    float64: ClassVar[bool] = True
    """Whether the device has that type."""
    # Only operations count, not the functions that lead to them.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> _Tensor:
        if numbers.dtype is torch.float64 and not cls.float64:
            raise TypeError(f"{SIMULATED} has no float64: use float32, or the CPU")
        made: _Tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device("sim", 0),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            requires_grad=numbers.requires_grad,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.numbers!r} on {SIMULATED}"

    def __getitem__(self, index: Any) -> Any:
        # A list is made a tensor where no operation is seen.
        places = index if isinstance(index, tuple) else (index,)
        tensors = (torch.tensor(i) if isinstance(i, list) else i for i in places)
        return super().__getitem__(tuple(tensors))

    def tolist(self) -> Any:
        _work.waited("tolist")
        return self.numbers.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {SIMULATED} device type tensor to numpy")

    __array__ = numpy  # type: ignore[assignment]

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: Any = None, device: Any = None
    ) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or SIMULATED)


class _Simulation(TorchDispatchMode):
    """Takes over operations that make a tensor on the device or are given one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(t, _Tensor) for t in _tensors(args, kwargs)) or (
            _is_simulated(kwargs.get("device"))
        ):
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do one operation on the CPU, if a device would have done it."""
    name = func._schema.name
    tensors = list(_tensors(args, kwargs))
    ours = [tensor for tensor in tensors if isinstance(tensor, _Tensor)]
    target = kwargs.get("device")
    there = bool(ours) if target is None else _is_simulated(target)
    on_cpu, options = _mapped(_numbers, args), _mapped(_numbers, kwargs)

    if not func.is_view:
        _work.launches[name] += 1
    if name == "aten::copy_":  # between devices, in either direction
        if isinstance(args[0], _Tensor) != isinstance(args[1], _Tensor):
            goes_on = args[2:] == (True,) or kwargs.get("non_blocking", False)
            _copied(isinstance(args[0], _Tensor), goes_on)
        func(*on_cpu, **options)
        return args[0]
    if name == "aten::_to_copy":
        if there != bool(ours):
            _copied(there, kwargs.get("non_blocking", False))
        options.pop("device", None)
        options.pop("non_blocking", None)
        copy = func(*on_cpu, **options)
        return _Tensor(copy) if there else copy

    if ours and name not in _INDEXING | _PACKING:
        _refuse_mixture(name, tensors)
    if ours and (name in _WAITING or (name in _INDEXING and _is_sized(args[1]))):
        _work.waited(name.removeprefix("aten::"))
    elif ours and name in _INDEXING and len(ours) < len(tensors):
        _work.waited("an index of the host")
    if name in CELLS:
        return _mapped(_Tensor, CELLS[name](*on_cpu))
    if name == "aten::_local_scalar_dense":
        return func(*on_cpu, **options)
    if target is not None:
        options["device"] = torch.device("cpu")
    found = func(*on_cpu, **options)
    if name in _PACKING:
        return _Tensor(found[0]), found[1]
    if not there:
        return found
    known = {id(tensor.numbers): tensor for tensor in ours}  # of in-place operations

    def placed(value: torch.Tensor) -> torch.Tensor:
        return known[id(value)] if id(value) in known else _Tensor(value)

    return _mapped(placed, found)


def _copied(there: bool, goes_on: bool) -> None:
    """Count a copy, for which the host waits unless it says that it goes on."""
    if goes_on and not there:
        raise RuntimeError(
            f"a non_blocking copy from {SIMULATED} to the CPU returns before the "
            "numbers are there: leave non_blocking out"
        )
    if not goes_on:
        _work.waited("a copy")


def _is_sized(indices: Any) -> bool:
    """Whether the device alone knows how many places are meant."""
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _numbers(value: torch.Tensor) -> torch.Tensor:
    return value.numbers if isinstance(value, _Tensor) else value


def _tensors(*values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of what an operation takes, where nothing is nested deeply."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(*value)
        elif isinstance(value, dict):
            yield from _tensors(*value.values())


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Replace the tensors of what an operation takes or gives."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, one) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(function, one) for name, one in value.items()}
    return value


def _refuse_mixture(name: str, tensors: list[torch.Tensor]) -> None:
    if any(t.dim() > 0 and not isinstance(t, _Tensor) for t in tensors):
        given = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {name} was given {given}"
        )


# -- cells that devices compute in one operation, and the CPU does not ----------------


def _lstm_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    cell: torch.Tensor,
    *biases: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    gates = from_input + from_hidden
    for bias in biases:
        gates = gates if bias is None else gates + bias
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    ours = from_input if input_bias is None else from_input + input_bias
    theirs = from_hidden if hidden_bias is None else from_hidden + hidden_bias
    reset, keep, candidate = ours.chunk(3, -1)
    reset_too, keep_too, candidate_too = theirs.chunk(3, -1)
    new = (candidate + (reset + reset_too).sigmoid() * candidate_too).tanh()
    going_on = new + (keep + keep_too).sigmoid() * (hidden - new)
    return going_on, torch.cat([ours, theirs], -1)


def _lstm_cell_backward(
    of_hidden: torch.Tensor | None,
    of_cell: torch.Tensor | None,
    before: torch.Tensor,
    cell: torch.Tensor,
    gates: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    enter, forget, candidate, leave = gates.chunk(4, -1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    candidate, out = candidate.tanh(), cell.tanh()
    hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    of_cell = torch.zeros_like(cell) if of_cell is None else of_cell
    of_cell = of_cell + hidden * leave * (1 - out**2)
    found = torch.cat(
        [
            of_cell * candidate * enter * (1 - enter),
            of_cell * before * forget * (1 - forget),
            of_cell * enter * (1 - candidate**2),
            hidden * out * leave * (1 - leave),
        ],
        -1,
    )
    of_bias = found.sum(0) if has_bias else None
    return found, of_cell * forget, of_bias


CELLS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
"""Operation -> what it does, on the CPU."""
