"""Tensors come out as they went in; hostile files are refused, in bounded memory."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import pytest
import torch
from torch import nn

from lm_latent_eval.convert.torch_files import parameters, read_torch
from lm_latent_eval.convert.unpickling import PickleError, StandIn
from tests.limits import at_most

MODULES = ("container.Sequential", "linear.Linear", "activation.ReLU")
CLASSES = [f"torch.nn.modules.{name}" for name in MODULES]
LITTLE = 1 << 28
"""Bytes beyond those that starting takes; no file here has more than 200,000."""


def saved(content, *, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def in_zip(pickled: bytes, numbers: bytes = b"", compression=zipfile.ZIP_STORED):
    """What torch would read as a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", numbers)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def in_row(pickled: bytes, numbers: bytes = b"", count: int | None = None) -> bytes:
    """What torch would read as a row of pickles."""
    heads = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    parts = [pickle.dumps(head, 2) for head in heads]
    parts += [pickled, pickle.dumps(["0"] if numbers or count else [], 2)]
    if numbers or count:
        parts.append(struct.pack("<q", len(numbers) // 4 if count is None else count))
    return b"".join([*parts, numbers])


FORMS = {"zip": in_zip, "row": in_row}


class Numbers(tuple):
    """A persistent id, as torch refers to numbers elsewhere in a file."""


FOUR = Numbers(("storage", torch.FloatStorage, "0", "cpu", 4))


class Odd:
    """A tensor that says of itself what it likes."""

    def __init__(self, size, stride, offset: int = 0, numbers: object = FOUR) -> None:
        self.said = numbers, offset, tuple(size), tuple(stride), False, {}

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.said


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Numbers) else None


def table(**tensors: Odd) -> bytes:
    file = io.BytesIO()
    Pickler(file, 2).dump(tensors)
    return file.getvalue()


# -- read ---------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_come_out_as_they_went_in(zipped):
    numbers = torch.arange(24.0).view(4, 6)
    bits = torch.tensor([1, 0, 1, 1, 0])
    wanted = {
        "whole": numbers,
        "turned": numbers.T,
        "part": numbers[1:3, ::2],
        "half": numbers.half(),
        "brain": numbers.bfloat16(),
        "double": numbers.double(),
        "long": bits,
        "int": bits.int(),
        "byte": bits.byte(),
        "bool": bits.bool(),
        "number": torch.tensor(2.5),
        "parameter": nn.Parameter(numbers + 1),
    }
    file = read_torch(saved(wanted, zipped=zipped))
    found = file.tensors(file.content)
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype
        assert torch.equal(found[name], each), name


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_modules_are_records(zipped):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    file = read_torch(saved({"model": module}, zipped=zipped), CLASSES)
    assert isinstance(file.content["model"], StandIn)
    found = file.tensors(parameters(file.content["model"]))
    wanted = module.state_dict()
    assert found.keys() == wanted.keys() == {"0.weight", "0.bias", "2.weight"}
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


# -- refused ------------------------------------------------------------------------

NUMBERS = struct.pack("<4f", 1, 2, 3, 4)
COMPLEX = Numbers(("storage", torch.ComplexFloatStorage, *FOUR[2:]))
BAD_TENSORS = {
    "larger than its numbers": (Odd([5], [1]), "numbers are missing"),
    "beyond its numbers": (Odd([2], [1], 3), "numbers are missing"),
    "stride 0": (Odd([1 << 40], [0]), "a stride of 0"),
    "steps that overlap": (Odd([3, 2, 2], [1, 1, 1]), "larger than the numbers"),
    "of a terabyte": (Odd([1 << 40], [1]), "larger than the numbers"),
    "a negative size": (Odd([-4], [1]), "no shape"),
    "a negative offset": (Odd([2], [1], -1), "no shape"),
    "a size beyond 64 bits": (Odd([1 << 70], [1]), "no shape"),
    "more sizes than strides": (Odd([2, 2], [1]), "no shape"),
    "a hundred dimensions": (Odd([1] * 100, [1] * 100), "no shape"),
    "numbers that are none": (Odd([1], [1], numbers=None), "no numbers"),
    "numbers of no known kind": (Odd([1], [1], 0, COMPLEX), "asks for torch.Complex"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_tensors_that_are_not_in_the_file(form, kind):
    wrong, message = BAD_TENSORS[kind]

    def read(one):
        file = read_torch(FORMS[form](table(one=one), NUMBERS))
        return file.tensors(file.content)["one"].tolist()

    assert read(Odd([2, 2], [1, 2])) == [[1, 3], [2, 4]], "premise"
    with at_most(LITTLE), pytest.raises(PickleError, match=message):
        read(wrong)


def test_many_names_of_large_numbers():
    """A thousand names of 100,000 bytes would be 100 MB; a million names, 100 GB."""
    names = {f"t{i}": Odd([25_000], [1]) for i in range(1000)}
    file = read_torch(in_zip(table(**names), bytes(100_000)))
    with pytest.raises(PickleError, match="larger than the numbers that it has"):
        file.tensors(file.content)


def test_too_little_memory_is_no_damage(monkeypatch):
    def full(_):
        raise RuntimeError("not enough memory")

    file = read_torch(in_zip(table(one=Odd([4], [1])), NUMBERS))
    monkeypatch.setattr(torch.Tensor, "clone", full)
    with pytest.raises(RuntimeError, match="not enough memory"):
        file.tensors(file.content)


@pytest.mark.parametrize("count", [1 << 40, 1 << 62, -1, -(1 << 62), 5])
def test_numbers_that_are_only_declared(count):
    content = in_row(table(t=Odd([4], [1])), NUMBERS, count)
    with at_most(LITTLE), pytest.raises(PickleError, match="numbers are missing"):
        read_torch(content)


SPECIAL_TENSORS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(1 << 40, device="meta"),
    "a class of its own": lambda: nn.Buffer(torch.ones(2)),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", SPECIAL_TENSORS)
def test_tensors_of_other_kinds(kind, zipped):
    content = saved({"t": SPECIAL_TENSORS[kind]()}, zipped=zipped)
    with pytest.raises(PickleError, match=r"it asks for|neither a module nor"):
        read_torch(content)


def test_parts_that_unpack_to_more():
    """A hundred thousand bytes of zip become a hundred million."""
    content = in_zip(b"\x80\x02}.", bytes(10**8), zipfile.ZIP_DEFLATED)
    assert len(content) < 200_000, "premise"
    with at_most(10**8), pytest.raises(PickleError, match="parts of it are compressed"):
        read_torch(content)


def test_parts_that_share_their_bytes():
    """Each entry of the directory names the same 100,000 bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(100_000))
        first = archive.infolist()[-1]
        for i in range(1, 1000):
            again = zipfile.ZipInfo(f"archive/data/{i}")
            for field in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(again, field, getattr(first, field))
            archive.filelist.append(again)
    assert len(file.getvalue()) < 200_000, "premise: a hundred million bytes in all"
    with at_most(10**8), pytest.raises(PickleError, match="larger than the file"):
        read_torch(file.getvalue())


# -- modules ------------------------------------------------------------------------


def module(**attributes) -> StandIn:
    return StandIn(state=attributes)


def nested(depth: int) -> StandIn:
    inner = module()
    for _ in range(depth):
        inner = module(_modules={"m": inner})
    return inner


def within_itself() -> StandIn:
    outer = module(_modules={})
    outer.attributes["_modules"]["m"] = module(_modules={"m": outer})
    return outer


def branching() -> StandIn:
    """Ten parts that are one, eight times over: a hundred million names."""
    inner = module()
    for _ in range(8):
        inner = module(_modules={str(i): inner for i in range(10)})
    return inner


BAD_MODULES = {
    "no table of parameters": (module(_parameters=None), "_parameters of a module is"),
    "no tensor": (module(_parameters={"w": 1}), "_parameters of a module holds"),
    "no name": (module(_modules={1: module()}), "_modules of a module holds"),
    "a long name": (module(_modules={"m" * 10**6: module()}), "_modules of a module"),
    "3,000 deep": (nested(3000), "within themselves, or without end"),
    "within itself": (within_itself(), "within themselves, or without end"),
    "in many places": (branching(), "within themselves, or without end"),
}


@pytest.mark.parametrize("kind", BAD_MODULES)
def test_modules_that_are_none(kind):
    record, message = BAD_MODULES[kind]
    with at_most(LITTLE), pytest.raises(PickleError, match=message):
        parameters(record)


def test_attributes_that_are_no_table():
    linear = b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81"
    for state in (b"N", b"]", b"K\x01", b"(K\x01K\x02t"):
        file = read_torch(in_zip(linear + state + b"b."), CLASSES)
        assert parameters(file.content) == {}
