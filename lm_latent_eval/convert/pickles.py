"""Pickles and files of ``torch.save``, read without running anything of them.

A pickle is a program: it may import any function and call it. Here names of classes
and functions are looked up in a table of containers and never imported. Given names of
a program's classes become a ``StandIn``, which only holds its state.

Files of torch are read by torch (``weights_only``) with the same stand-ins. Whole
modules saved before PyTorch 1.6, a row of pickles and numbers, are refused by torch
and read here.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.files import regular
from lm_latent_eval.models.checkpoint import not_finite


class PickleError(ValueError):
    """Error of a pickle that is damaged, or holds more than plain data."""


class StandIn:
    """State of an object of a pickle, of any class."""

    state: Any = None

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


_CONTAINERS = {
    "builtins.dict": dict,
    "builtins.frozenset": frozenset,
    "builtins.int": int,
    "builtins.list": list,
    "builtins.long": int,  # of Python 2
    "builtins.set": set,
    "collections.Counter": dict,
    "collections.OrderedDict": OrderedDict,
    "torch.Size": tuple,
}
"""Types written in C, which a pickle cannot change."""
_OF_NUMPY = (
    "_codecs.encode",
    "numpy.dtype",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
)
"""Names behind NumPy numbers among the attributes of a module."""
_STORAGES = {
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.BoolStorage": torch.bool,
    "torch.ByteStorage": torch.uint8,
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.IntStorage": torch.int32,
    "torch.LongStorage": torch.int64,
}


class _Unpickler(pickle.Unpickler):
    """Unpickler of containers and stand-ins; tensors have no numbers yet."""

    def __init__(self, file: io.BytesIO, classes: Iterable[str] = ()) -> None:
        super().__init__(file)
        # Methods of this object, not functions: a pickle cannot change them.
        self.names = {
            **_CONTAINERS,
            **_STORAGES,
            **dict.fromkeys(classes, StandIn),
            "collections.defaultdict": self._default_dict,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
        }
        self.dtypes: dict[str, torch.dtype] = {}
        self.tensors: list[tuple[Tensor, str, Any, Any, Any]] = []

    def find_class(self, module: str, name: str) -> Any:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full not in self.names:
            raise _Unknown(full)
        return self.names[full]

    def persistent_load(self, pid: Any) -> Any:
        """Return a class that comes with its source, or the key of a storage."""
        match pid:
            case ("module", container, *_):
                return container
            case (
                ("storage", torch.dtype() as dtype, str(key), _, _)
                | ("storage", torch.dtype() as dtype, str(key), _, _, None)  # no view
            ):
                self.dtypes[key] = dtype
                return key
        raise PickleError("it refers to what is neither a module nor numbers")

    def _default_dict(self, _: Any = None, *items: Any) -> dict[Any, Any]:
        return dict(*items)

    def _parameter(self, data: Any, *_: Any) -> Any:
        return data

    def _tensor(self, key: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        tensor = torch.empty(0, dtype=self.dtypes[key])
        self.tensors.append((tensor, key, size, stride, offset))
        return tensor


class _Unknown(PickleError):
    def __init__(self, name: str) -> None:
        shown = repr(name[:200])[1:-1]  # it may well have line ends
        super().__init__(f"it asks for {shown}, which its data do not need")


def load_pickle(path: Path) -> Any:
    """Read a pickle of plain data; every mapping becomes a ``dict``.

    Raises:
        PickleError: If the file holds anything else, or is damaged.
        OSError: If the file cannot be read.
    """
    try:
        return _Unpickler(io.BytesIO(regular(path).read_bytes())).load()
    except PickleError as err:
        raise PickleError(
            f"{path} is refused: {err}; nothing in it was run. If you trust the file, "
            "load it yourself and write what it holds as JSON"
        ) from None
    except OSError:
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise PickleError(
            f"{path} is not a readable pickle ({err!r:.200}): copy or download it again"
        ) from err


def read_torch(content: bytes, classes: Iterable[str] = ()) -> Any:
    """Read a file of ``torch.save`` on the CPU.

    Args:
        content: Content of the file.
        classes: Full names of allowed classes, whose objects become ``StandIn``;
            without them it may hold tensors and plain data alone.

    Raises:
        PickleError: If it is damaged or holds anything else.
    """
    file, names = io.BytesIO(content), [*classes, *_OF_NUMPY]
    try:
        if classes and not content.startswith(b"PK\x03\x04"):
            return _read_row(file, names)
        with torch.serialization.safe_globals([(StandIn, name) for name in names]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except PickleError:
        raise
    except Exception as err:  # a damaged file can raise nearly anything
        if unknown := re.search(r"GLOBAL (\w+(\.\w+)+)", str(err)):
            raise _Unknown(unknown[1]) from err
        raise PickleError(
            f"it is damaged, or not by torch.save ({type(err).__name__})"
        ) from err


_MAGIC = 0x1950A86A20F9469CFC6C
"""First number of a file from before PyTorch 1.6."""


def _read_row(file: io.BytesIO, names: Iterable[str]) -> Any:
    """Read pickles that follow one another, and then the numbers of each storage."""
    if _Unpickler(file).load() != _MAGIC:
        raise PickleError("torch has not saved it")
    for _ in ("version of the format", "about the machine"):
        _Unpickler(file).load()
    reader = _Unpickler(file, names)
    saved = reader.load()
    numbers = {}
    for key in _Unpickler(file).load():
        (count,), dtype = struct.unpack("<q", file.read(8)), reader.dtypes[key]
        read = file.read(max(count, 0) * dtype.itemsize)
        if len(read) != count * dtype.itemsize:
            raise PickleError("numbers are missing: it is damaged")
        numbers[key] = torch.frombuffer(bytearray(read), dtype=dtype)
    for tensor, key, size, stride, offset in reader.tensors:
        tensor.data = numbers[key].as_strided(size, stride, offset)
    return saved


def part(saved: Any, name: str) -> Any:
    """Entry of the dictionary in a file.

    Raises:
        PickleError: If there is none.
    """
    if not isinstance(saved, dict) or name not in saved:
        raise PickleError(f"it is no dictionary with {name!r}")
    return saved[name]


def tensors(saved: Any) -> dict[str, Tensor]:
    """Table of finite tensors, each in memory of its own.

    Raises:
        PickleError: If the file holds something else.
    """
    if not isinstance(saved, dict):
        raise PickleError("it holds no table of tensors")
    for name, tensor in saved.items():
        if not isinstance(name, str):
            raise PickleError(f"{shown(name)} is no name of a tensor")
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not (plain and tensor.device.type == "cpu"):
            raise PickleError(f"{shown(name)} is no tensor of numbers")
    copies = {name: tensor.detach().clone() for name, tensor in saved.items()}
    if wrong := not_finite(copies):
        raise PickleError(wrong)
    return copies


def parameters(module: Any) -> dict[str, Any]:
    """Parameters of a module and of its submodules, by name.

    Raises:
        PickleError: If it is not built like a module.
    """
    try:
        named = _parameters(module, "")
    except (AttributeError, KeyError, RecursionError, TypeError) as err:
        raise PickleError(f"it holds no module ({type(err).__name__})") from err
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _parameters(module: StandIn, prefix: str) -> dict[str, Any]:
    state = module.state
    named = {f"{prefix}{name}": each for name, each in state["_parameters"].items()}
    for name, inner in state["_modules"].items():
        named |= _parameters(inner, f"{prefix}{name}.")
    return named
