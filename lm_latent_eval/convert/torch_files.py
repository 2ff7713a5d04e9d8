"""Tensors and modules in files of ``torch.save``, read without executing anything.

torch's own reader of weights refuses the old row of pickles where it holds modules, and
allocates what a file merely declares. Here both forms of file are read, the zip archive
of today and the row from before PyTorch 1.6, without running anything of them
(``unpickling.py``): objects become ``StandIn``s, and tensors are views of numbers that
the file has. Sizes are compared with the length of the file before memory is taken:
what is read never takes more than a small multiple of it.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.convert.unpickling import (
    CONTAINERS,
    PickleError,
    Reader,
    StandIn,
)
from lm_latent_eval.models.checkpoint import not_finite

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first number of an old file."""
_LIMIT = 8
"""Dimensions of a tensor, and modules within modules: originals have two and three."""
_LONGEST = 100
"""Characters of a name."""

_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
}


@dataclass(frozen=True)
class Storage:
    """A storage: the numbers of tensors, elsewhere in the file."""

    key: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Stored:
    """A tensor before its numbers are read."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check shape, strides and extent."""
        numbers = (self.offset, *self.size, *self.stride)
        if not (
            len(self.size) == len(self.stride) <= _LIMIT
            and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
        ):
            raise PickleError("a tensor has no shape")
        if any(
            n > 1 and not step for n, step in zip(self.size, self.stride, strict=True)
        ):
            raise PickleError("a tensor repeats its numbers (a stride of 0)")

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in memory."""
        return math.prod(self.size) * self.storage.dtype.itemsize


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Stored:
    if not isinstance(storage, Storage):
        raise PickleError("a tensor has no numbers")
    return Stored(storage, offset, tuple(size), tuple(stride))


_NAMES: Mapping[str, Any] = {
    **CONTAINERS,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    # Numbers of NumPy that a module may keep among its attributes.
    "_codecs.encode": StandIn,
    "numpy.dtype": StandIn,
    "numpy.core.multiarray.scalar": StandIn,
    "numpy._core.multiarray.scalar": StandIn,
    **{f"torch.{name}": dtype for name, dtype in _STORAGES.items()},
}


def _refer(pid: Any) -> Any:
    """Return a class that comes with its source, or a storage."""
    match pid:
        case ("module", container, *_):
            return container
        case (
            ("storage", torch.dtype() as dtype, str(key), _, _)
            | ("storage", torch.dtype() as dtype, str(key), _, _, None)  # no view
        ):
            return Storage(key, dtype)
    raise PickleError("it refers to what is neither a module nor numbers")


@dataclass(frozen=True)
class TorchFile:
    """Content of a file whose tensors are not read yet."""

    content: Any
    """Plain data, ``StandIn``s and ``Stored`` tensors."""
    storages: Mapping[str, bytes | memoryview]

    def part(self, name: str) -> Any:
        """Return an entry of the dictionary that it holds.

        Raises:
            PickleError: If it holds none, or lacks it.
        """
        if not isinstance(self.content, dict) or name not in self.content:
            raise PickleError(f"it is no dictionary with {name!r}")
        return self.content[name]

    def tensors(self, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
        """Read tensors, each into memory of its own.

        Raises:
            PickleError: If there are none under names, or numbers are missing, not
                finite, or those of many tensors.
        """
        if not isinstance(stored, dict):
            raise PickleError("it holds no table of tensors")
        for name, tensor in stored.items():
            if not isinstance(name, str):
                raise PickleError(f"{shown(name)} is no name of a tensor")
            if not isinstance(tensor, Stored):
                raise PickleError(f"{shown(name)} is no tensor")
        wanted = sum(tensor.num_bytes for tensor in stored.values())
        # Tied weights have two names.
        if wanted > 2 * sum(map(len, self.storages.values())):
            raise PickleError("its tensors are larger than the numbers that it has")
        flat = {s: self._numbers(s) for s in {t.storage for t in stored.values()}}
        try:
            views = {
                name: flat[t.storage].as_strided(t.size, t.stride, t.offset)
                for name, t in stored.items()
            }
        except RuntimeError as err:
            raise PickleError("numbers are missing: it is damaged") from err
        found = {name: view.clone() for name, view in views.items()}
        if wrong := not_finite(found):
            raise PickleError(wrong)
        return found

    def _numbers(self, storage: Storage) -> Tensor:
        try:
            numbers = bytearray(self.storages[storage.key])
            return torch.frombuffer(numbers, dtype=storage.dtype)
        except (KeyError, ValueError) as err:
            raise PickleError("numbers are missing: it is damaged") from err


def read_torch(content: bytes, classes: Iterable[str] = ()) -> TorchFile:
    """Read what ``torch.save`` wrote.

    Args:
        content: Of the file.
        classes: Full names of the classes of objects that it may hold.

    Raises:
        PickleError: If it is damaged or asks for anything else.
    """
    names = {**_NAMES, **dict.fromkeys(classes, StandIn)}
    read = _read_zip if content.startswith(b"PK\x03\x04") else _read_row
    try:
        return read(content, names)
    except PickleError:
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise PickleError(f"it is damaged ({type(err).__name__})") from err


def _read_zip(content: bytes, names: Mapping[str, Any]) -> TorchFile:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise PickleError("parts of it are compressed, which torch never does")
        if sum(part.file_size for part in parts) > len(content):
            raise PickleError("its parts are larger than the file")
        (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        pickled = archive.read(name)
        folder = name.removesuffix("data.pkl") + "data/"
        storages = {
            n.removeprefix(folder): archive.read(n)
            for n in archive.namelist()
            if n.startswith(folder)
        }
    reader = Reader(io.BytesIO(pickled), len(pickled), names, _refer)
    return TorchFile(reader.load(), storages)


def _read_row(content: bytes, names: Mapping[str, Any]) -> TorchFile:
    file, dtypes = io.BytesIO(content), {}

    def load(
        names: Mapping[str, Any], refer: Callable[[Any], Any] | None = None
    ) -> Any:
        return Reader(file, len(content), names, refer).load()

    def note(pid: Any) -> Any:
        found = _refer(pid)
        if isinstance(found, Storage):
            dtypes[found.key] = found.dtype
        return found

    if load({}) != _MAGIC:
        raise PickleError("torch has not saved it")
    for _ in ("version of the format", "about the machine"):
        load({})
    loaded, storages = load(names, note), {}
    for key in load({}):
        if not isinstance(key, str):
            raise PickleError("numbers have no name: it is damaged")
        (count,) = struct.unpack("<q", file.read(8))
        start = file.tell()
        end = start + count * dtypes[key].itemsize
        if not start <= end <= len(content):
            raise PickleError("numbers are missing: it is damaged")
        storages[key] = memoryview(content)[start:end]
        file.seek(end)
    return TorchFile(loaded, storages)


def parameters(module: StandIn) -> dict[str, Stored]:
    """Return the parameters of a module and of those inside it, by name.

    Raises:
        PickleError: If it is not built like a module.
    """
    if not isinstance(module, StandIn):
        raise PickleError("it holds no module")
    found: dict[str, Stored] = {}
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        prefix, outer = waiting.pop()
        if id(outer) in seen or prefix.count(".") > _LIMIT:
            raise PickleError("its modules are within themselves, or without end")
        seen.add(id(outer))
        found |= {prefix + n: p for n, p in _table(outer, "_parameters", Stored)}
        waiting += [(f"{prefix}{n}.", m) for n, m in _table(outer, "_modules", StandIn)]
    return found


def _table(module: StandIn, attribute: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield a module's parameters, buffers or submodules; an absent one is None."""
    table = module.attributes.get(attribute, {})
    if not isinstance(table, dict):
        raise PickleError(f"{attribute} of a module is no table of names")
    for name, value in table.items():
        known = isinstance(name, str) and len(name) <= _LONGEST
        if not (known and isinstance(value, kind | None)):
            raise PickleError(f"{attribute} of a module holds what does not belong")
        if value is not None:
            yield name, value
