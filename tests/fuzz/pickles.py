"""Pickles that no Python object would make, written instruction by instruction."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.text.words import SPECIAL_WORDS

DEEP = 3_000
"""More than there is room for on the stack of a Python that recurs."""
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""How files of torch began before they were zip archives."""


@dataclass(frozen=True)
class Name:
    """Something that a pickle imports."""

    module: str
    name: str


class Call:
    """What a function returns, and what it is told to become."""

    def __init__(self, function: Name, *arguments: Any, state: Any = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state


class Module(Call):
    """A module of torch, with its parameters and the modules within."""

    def __init__(self, name: str, parameters: Any = None, modules: Any = None) -> None:
        where = Name("copyreg", "_reconstructor")
        super().__init__(where, Name(*name.rsplit(".", 1)), Name("builtins", "object"))
        self.function, self.arguments = Name(*name.rsplit(".", 1)), ()
        self.state = {"_parameters": parameters, "_modules": modules, "training": False}


@dataclass(frozen=True)
class Storage:
    """Numbers that stand elsewhere in a file."""

    key: Any
    count: Any
    kind: str = "FloatStorage"

    @property
    def pid(self) -> tuple[Any, ...]:
        return "storage", Name("torch", self.kind), self.key, "cpu", self.count


def tensor(
    storage: Any, size: Any, stride: Any, offset: Any = 0, function: str = "_v2"
) -> Call:
    """A tensor of a part of a storage."""
    rebuild = Name("torch._utils", f"_rebuild_tensor{function}")
    return Call(rebuild, storage, offset, size, stride, False, OrderedDict())


class Writer(pickle._Pickler):
    """Writes what is described above."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Name):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Call) and id(obj) in self.memo:
            self.write(self.get(self.memo[id(obj)][0]))
        elif isinstance(obj, Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
            self.memoize(obj)
            if obj.state is not None:
                self.save(obj.state)
                self.write(pickle.BUILD)
        else:
            super().save(obj, save_persistent_id)


def written(content: Any) -> bytes:
    """Return a pickle."""
    file, limit = io.BytesIO(), sys.getrecursionlimit()
    sys.setrecursionlimit(100 * DEEP)
    try:
        Writer(file, 2).dump(content)
    finally:
        sys.setrecursionlimit(limit)
    return file.getvalue()


def zipped(content: bytes, numbers: dict[str, bytes], *, packed: bool = False) -> bytes:
    """Return a file as torch writes it today."""
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("archive/data.pkl", content)
        for name, stored in numbers.items():
            archive.writestr(f"archive/data/{name}", stored)
    return file.getvalue()


def in_a_row(content: bytes, numbers: dict[str, tuple[int, bytes]]) -> bytes:
    """Return a file as torch wrote it before: pickles, then counted numbers."""
    begin = [pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {"little_endian": 1})]
    end = [struct.pack("<q", count) + stored for count, stored in numbers.values()]
    return b"".join([*begin, content, pickle.dumps(list(numbers), 2), *end])


def numbers_of(values: Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return values.contiguous().numpy().tobytes()


LINEAR = "torch.nn.modules.linear.Linear"
SEQUENTIAL = "torch.nn.modules.container.Sequential"
WEIGHT = torch.arange(6, dtype=torch.float32).view(2, 3) / 7
GOOD = tensor(Storage("0", 6), (2, 3), (3, 1))


def linear(weight: Any = GOOD) -> Module:
    return Module(LINEAR, OrderedDict(weight=weight), OrderedDict())


def model(inner: Any) -> dict[str, Any]:
    """What the original program saves, around a module."""
    return {"model": inner, "idx2word": dict(enumerate(SPECIAL_WORDS))}


def nested(depth: int) -> Module:
    """Modules within modules."""
    inner = linear()
    for _ in range(depth):
        inner = Module(SEQUENTIAL, OrderedDict(), OrderedDict({"0": inner}))
    return inner


def within_itself() -> Module:
    """A module that holds itself."""
    module = Module(SEQUENTIAL, OrderedDict(), OrderedDict())
    module.state["_modules"]["0"] = module
    return module


MODULES = {
    "good": linear(),
    "nested": nested(50),
    "nested deeply": nested(DEEP),
    "within itself": within_itself(),
    "parameters that are None": Module(LINEAR, None, OrderedDict()),
    "parameters in a list": Module(LINEAR, [GOOD], OrderedDict()),
    "modules that are None": Module(LINEAR, OrderedDict(weight=GOOD), None),
    "modules in a list": Module(SEQUENTIAL, OrderedDict(), [linear()]),
    "a name that is none": Module(LINEAR, OrderedDict({3: GOOD}), OrderedDict()),
    "a state in a list": Call(Name(*LINEAR.rsplit(".", 1)), state=[1, 2]),
    "stride 0": linear(tensor(Storage("0", 6), (2, 3), (0, 0))),
    "stride 0 and a large size": linear(tensor(Storage("0", 6), (1 << 34,), (0,))),
    "a negative stride": linear(tensor(Storage("0", 6), (2, 3), (-3, 1))),
    "a negative size": linear(tensor(Storage("0", 6), (-2, 3), (3, 1))),
    "a negative offset": linear(tensor(Storage("0", 6), (2, 3), (3, 1), -1)),
    "an offset beyond": linear(tensor(Storage("0", 6), (2, 3), (3, 1), 1 << 62)),
    "an offset in words": linear(tensor(Storage("0", 6), (2, 3), (3, 1), "one")),
    "sizes in words": linear(tensor(Storage("0", 6), ("2", 3), (3, 1))),
    "a size that is a number": linear(tensor(Storage("0", 6), 6, 1)),
    "too few strides": linear(tensor(Storage("0", 6), (2, 3), (1,))),
    "many axes": linear(tensor(Storage("0", 6), (1,) * 500, (1,) * 500)),
    "sizes beyond 64 bits": linear(tensor(Storage("0", 6), (1 << 70,), (1,))),
    "no storage": linear(tensor(None, (2, 3), (3, 1))),
    "a storage that is missing": linear(tensor(Storage("1", 6), (2, 3), (3, 1))),
    "a storage of no name": linear(tensor(Storage(None, 6), (2, 3), (3, 1))),
    "a count in words": linear(tensor(Storage("0", "six"), (2, 3), (3, 1))),
    "a storage of quantized numbers": linear(
        tensor(Storage("0", 6, "QInt8Storage"), (2, 3), (3, 1))
    ),
    "a quantized tensor": linear(
        Call(Name("torch._utils", "_rebuild_qtensor"), Storage("0", 6), 0, (6,), (1,))
    ),
    "a sparse tensor": linear(
        Call(
            Name("torch._utils", "_rebuild_sparse_tensor"), Name("torch", "sparse_coo")
        )
    ),
    "a meta tensor": linear(
        Call(Name("torch._utils", "_rebuild_meta_tensor_no_storage"), 1, (1 << 40,))
    ),
    "a parameter of a list": linear(Call(Name("torch._utils", "_rebuild_parameter"))),
    "a call of the system": linear(Call(Name("os", "mkdir"), "exploded")),
    "a function with other defaults": Call(
        Name("torch._utils", "_rebuild_tensor_v2"), state={"__defaults__": (1, 2)}
    ),
    "a class with another method": Call(
        Name("collections", "OrderedDict"), state={"__init__": 1}
    ),
}
"""What a saved model may hold, all but the first few of it odd."""


def _entangled(depth: int) -> bytes:
    """A list of twice a list of twice a list: small to write, endless to walk."""
    step = b"".join([pickle.EMPTY_LIST, b"h\0", pickle.APPEND, b"h\0", pickle.APPEND])
    return b"\x80\x02]q\0" + b"".join(step + b"q\0" for _ in range(depth)) + b"."


RAW = {
    "empty": b"",
    "a stop": b".",
    "a protocol of the future": b"\x80\x7fN.",
    "a place in the memo far away": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a place in the memo farther away": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a place in the memo by decimals": b"Np99999999999\n.",
    "a negative place in the memo": b"Np-1\n.",
    "something that was never kept": b"\x80\x02h\x07.",
    "lists in lists": b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    "tuples in tuples": b"\x80\x02N" + b"\x85" * DEEP + b".",
    "tuples in tuples as a key": b"\x80\x02}N" + b"\x85" * DEEP + b"Ns.",
    "marks": b"\x80\x02" + b"(" * DEEP + b".",
    "a list of twice a list": _entangled(64),
    "a long string that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60),
    "long bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60),
    "an array that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60),
    "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "a number of many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a long number of many bytes": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1),
    "a negative length": b"\x80\x02\x8b" + struct.pack("<i", -1),
    "a string that is none": b"\x80\x02X\x01\0\0\0\xff.",
    "a key that is none": b"\x80\x02}]Ns.",
    "a number of key and value": b"\x80\x02}(NNNu.",
    "an item of nothing": b"\x80\x02a.",
    "a call of nothing": b"\x80\x02R.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call of eval": b"\x80\x02c__builtin__\neval\nU\x011\x85R.",
    "an attribute of an attribute": b"\x80\x04\x8c\x08builtins\x8c\x0bint.__new__\x93.",
    "a range": b"\x80\x02cbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R.",
    "bytes of a number": b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
    "an integer of a base": b"\x80\x02cbuiltins\nint\nU\x01zK\x24\x86R.",
    "a persistent name": b"\x80\x02U\x01aQ.",
    "a name in a registry": b"\x80\x02\x82\x01.",
    "a build of a function": b"\x80\x02cbuiltins\nint\n}b.",
}
"""Pickles that are damaged, or made to exhaust or to run something."""
