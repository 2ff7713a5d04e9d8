"""Reads the parameters out of a module object that ``torch.save`` has pickled.

A pickle is a program: it may import any function and call it, and one of a whole module
imports the classes of the program that wrote it. Here every name that it asks for is
looked up in a table of containers that hold what they are given, and nothing is ever
imported; a name that the table lacks ends the reading. Both forms of file are read: the
zip archive of today and the row of pickles from before PyTorch 1.6, which torch's own
reader of weights refuses where it holds modules.

What is not protected: time and memory, which a file made to be large can exhaust.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first number of an old file."""

_STORAGES = {
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
}


class UnreadableError(ValueError):
    """A file that is damaged, or asks for more than the parameters of known modules."""


class Container:
    """Stands for any object: it holds what it is given."""

    def __init__(self, *_: Any) -> None:
        """Take anything, as whatever is pickled may."""
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        """Hold the attributes of a module."""
        self.attributes = state if isinstance(state, dict) else {}


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype


@dataclass(frozen=True)
class _Pickled:
    """A tensor whose numbers stand elsewhere in the file."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Pickled:
    if not isinstance(storage, _Storage):
        raise UnreadableError("a tensor has no numbers")
    return _Pickled(storage, int(offset), tuple(size), tuple(stride))


def _parameter(data: Any, *_: Any) -> Any:
    return data


_NAMES: Mapping[str, Any] = {
    "builtins.set": set,
    "collections.OrderedDict": dict,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    # Numbers of NumPy that a module may keep among its attributes.
    "_codecs.encode": Container,
    "numpy.dtype": Container,
    "numpy.core.multiarray.scalar": Container,
    "numpy._core.multiarray.scalar": Container,
    **{f"torch.{name}": dtype for name, dtype in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    """Finds names in a table only."""

    def __init__(self, file: BinaryIO, names: Mapping[str, Any]) -> None:
        super().__init__(file)
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; it is never imported."""
        wanted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if wanted not in self.names:
            raise UnreadableError(f"it asks for {wanted}")
        return self.names[wanted]

    def persistent_load(self, pid: Any) -> Any:
        """Return a class that comes with its source, or a storage."""
        match pid:
            case ("module", container, *_):
                return container
            case ("storage", torch.dtype() as dtype, str(key), *_):
                return _Storage(key, dtype)
        raise UnreadableError("it refers to what is neither a module nor numbers")


def read_module(path: Path, classes: Iterable[str]) -> tuple[Any, Callable[..., Any]]:
    """Read a file of ``torch.save``.

    Args:
        path: The file.
        classes: Full names of the classes that it may hold; each becomes a
            ``Container``.

    Returns:
        What the file holds, and a function from one of its modules to the parameters,
        name -> tensor.

    Raises:
        UnreadableError: If the file is damaged or asks for anything else.
    """
    names = {**_NAMES, **dict.fromkeys(classes, Container)}
    try:
        if zipfile.is_zipfile(path):
            content, storages = _read_zip(path, names)
        else:
            content, storages = _read_row(path, names)
    except (UnreadableError, FileNotFoundError):
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise UnreadableError(f"it is damaged ({type(err).__name__})") from err

    def parameters(module: Container) -> dict[str, Tensor]:
        return {
            name: _materialise(pickled, storages)
            for name, pickled in _parameters(module)
        }

    return content, parameters


def _read_zip(path: Path, names: Mapping[str, Any]) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        with archive.open(name) as file:
            content = _Unpickler(file, names).load()  # type: ignore[arg-type]
        folder = name.removesuffix("data.pkl") + "data/"
        storages = {
            n.removeprefix(folder): archive.read(n)
            for n in archive.namelist()
            if n.startswith(folder)
        }
    return content, storages


def _read_row(path: Path, names: Mapping[str, Any]) -> tuple[Any, dict[str, bytes]]:
    dtypes: dict[str, torch.dtype] = {}

    class Noting(_Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            found = super().persistent_load(pid)
            if isinstance(found, _Storage):
                dtypes[found.key] = found.dtype
            return found

    with path.open("rb") as file:
        if _Unpickler(file, {}).load() != _MAGIC:
            raise UnreadableError("torch has not saved it")
        for _ in ("version of the format", "about the machine"):
            _Unpickler(file, {}).load()
        content = Noting(file, names).load()
        storages = {}
        for key in _Unpickler(file, {}).load():
            (count,) = struct.unpack("<q", file.read(8))
            storages[key] = file.read(max(count, 0) * dtypes[key].itemsize)
    return content, storages


def _parameters(module: Container, prefix: str = "") -> Iterator[tuple[str, _Pickled]]:
    """Yield the parameters of a module and of those inside it, by name."""
    for name, value in module.attributes.get("_parameters", {}).items():
        if isinstance(value, _Pickled):
            yield prefix + name, value
    for name, inner in module.attributes.get("_modules", {}).items():
        if isinstance(inner, Container):
            yield from _parameters(inner, f"{prefix}{name}.")


def _materialise(pickled: _Pickled, storages: Mapping[str, bytes]) -> Tensor:
    try:
        numbers = bytearray(storages[pickled.storage.key])
        flat = torch.frombuffer(numbers, dtype=pickled.storage.dtype)
        view = flat.as_strided(pickled.size, pickled.stride, pickled.offset)
    except (KeyError, ValueError, RuntimeError, TypeError) as err:
        raise UnreadableError("numbers are missing: it is damaged") from err
    return view.clone()
