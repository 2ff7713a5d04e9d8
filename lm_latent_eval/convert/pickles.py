"""Pickles and files of ``torch.save``, read without running anything of them.

A pickle is a program: it may import any function and call it. Here a name of a class or
function is looked up in a table and never imported. The table has containers; where the
names of a program's classes are given, each of them is a ``StandIn``, which only holds
its state.

Files of torch are read by torch (``weights_only``) with the same stand-ins. What
PyTorch before 1.6 wrote of whole modules, a row of pickles and numbers, torch refuses:
it is read here.
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
    """A pickle that is damaged, or that holds more than was expected of it."""


class StandIn:
    """An object of a pickle, of any class: holds its state."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        """Drop the arguments."""

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
"""Types that are written in C: a pickle cannot change them."""
_OF_NUMPY = (
    "_codecs.encode",
    "numpy.dtype",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
)
"""What numbers of NumPy, among the attributes of a module, are made of."""
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
    """Finds containers and stand-ins alone; tensors have no numbers yet."""

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
        """Return what stands for a name."""
        wanted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if wanted not in self.names:
            raise _Unknown(wanted)
        return self.names[wanted]

    def persistent_load(self, pid: Any) -> Any:
        """Return a class that comes with its source, or the name of a storage."""
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
    """Read a pickle of plain data; every mapping of it is a ``dict``.

    Raises:
        PickleError: If the file asks for anything else, or is damaged.
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
    """Read what ``torch.save`` wrote, on the CPU.

    Args:
        content: Of the file.
        classes: Full names of the classes of objects that it may hold; each object
            becomes a ``StandIn``. None: it holds tensors and plain data alone.

    Raises:
        PickleError: If it is damaged or asks for anything else.
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
    found = reader.load()
    numbers = {}
    for key in _Unpickler(file).load():
        (count,), dtype = struct.unpack("<q", file.read(8)), reader.dtypes[key]
        read = file.read(max(count, 0) * dtype.itemsize)
        if len(read) != count * dtype.itemsize:
            raise PickleError("numbers are missing: it is damaged")
        numbers[key] = torch.frombuffer(bytearray(read), dtype=dtype)
    for tensor, key, size, stride, offset in reader.tensors:
        tensor.data = numbers[key].as_strided(size, stride, offset)
    return found


def part(found: Any, name: str) -> Any:
    """Return an entry of the dictionary that a file holds.

    Raises:
        PickleError: If it holds none, or lacks it.
    """
    if not isinstance(found, dict) or name not in found:
        raise PickleError(f"it is no dictionary with {name!r}")
    return found[name]


def tensors(found: Any) -> dict[str, Tensor]:
    """Return a table of finite tensors, each in memory of its own.

    Raises:
        PickleError: If a file holds something else.
    """
    if not isinstance(found, dict):
        raise PickleError("it holds no table of tensors")
    for name, tensor in found.items():
        if not isinstance(name, str):
            raise PickleError(f"{shown(name)} is no name of a tensor")
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not (plain and tensor.device.type == "cpu"):
            raise PickleError(f"{shown(name)} is no tensor of numbers")
    copies = {name: tensor.detach().clone() for name, tensor in found.items()}
    if wrong := not_finite(copies):
        raise PickleError(wrong)
    return copies


def parameters(module: Any) -> dict[str, Any]:
    """Return the parameters of a module and of those inside it, by name.

    Raises:
        PickleError: If it is not built like a module.
    """
    try:
        found = _parameters(module, "")
    except (AttributeError, KeyError, RecursionError, TypeError) as err:
        raise PickleError(f"it holds no module ({type(err).__name__})") from err
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _parameters(module: StandIn, prefix: str) -> dict[str, Any]:
    state = module.state
    found = {f"{prefix}{name}": each for name, each in state["_parameters"].items()}
    for name, inner in state["_modules"].items():
        found |= _parameters(inner, f"{prefix}{name}.")
    return found
