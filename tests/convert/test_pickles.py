"""Data and tensors come out as they went in; code in a file does not run."""

from __future__ import annotations

import collections
import io
import pickle
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from lm_latent_eval.convert import pickles
from lm_latent_eval.convert.pickles import (
    PickleError,
    StandIn,
    load_pickle,
    parameters,
    read_torch,
    tensors,
)
from tests.convert.hostile import Runs


def load(content: bytes, folder: Path):
    path = folder / "data.pkl"
    path.write_bytes(content)
    return load_pickle(path)


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_come_out_as_they_went_in(tmp_path, protocol):
    shared = ("R:P31", "Q5")
    names = collections.defaultdict(list, {"Q7": ["Ada", "Ada Lovelace \u2013 é"]})
    data = {
        "Q7": [shared, ("P19", "Q84")],
        "Q8": [shared],
        "names": names,
        "numbered": collections.defaultdict(int, a=1),
        "sets": {"a", "b"},
        "frozen": frozenset({("a", "é"), -(2**59)}),
        "counts": collections.Counter({"Ada": 2}),
        "ordered": collections.OrderedDict(x=[], y=None),
        "numbers": [-1, 2**70, 0.5, True],
    }
    if protocol > 2:  # before, bytes are written with a function
        data["bytes"] = b"\xff\0"
    read = load(pickle.dumps(data, protocol), tmp_path)
    assert read == data
    assert type(read["names"]) is dict, "a reader's typing error must not add entries"
    assert read["Q7"][0] is read["Q8"][0], "what was shared stays so"


# -- refused ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_are_refused_in_every_protocol(tmp_path, protocol):
    sprung = tmp_path / "sprung"
    content = pickle.dumps({"Q1": [Runs(sprung)]}, protocol)
    with pytest.raises(
        PickleError, match=r"data\.pkl is refused: it asks for (posix|nt)\.system"
    ):
        load(content, tmp_path)
    assert not sprung.exists()
    pickle.loads(content)
    assert sprung.exists(), "premise: the pickle is malicious"


CODE = b"X" + struct.pack("<i", 0)
"""Where code is put: an empty string."""
CALL, CALL_IT = b"(tR.", b"(" + CODE + b"tR."


def stack_global(module: str, name: str) -> bytes:
    parts = (b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"\x80\x04" + b"".join(parts) + b"\x93"


MALICIOUS = {
    "eval": (b"c__builtin__\neval\n" + CALL_IT, "asks for builtins.eval"),
    "exec by name on the stack": (
        stack_global("builtins", "exec") + CALL_IT,
        "asks for builtins.exec",
    ),
    "a nested name": (
        stack_global("collections", "OrderedDict.__init__.__globals__") + CALL,
        "asks for collections.OrderedDict.__init__",
    ),
    "a dotted name of an allowed type": (
        stack_global("builtins", "dict.fromkeys") + CALL_IT,
        "asks for builtins.dict.fromkeys",
    ),
    "a dotted module": (
        stack_global("collections.abc", "sys") + b".",
        "asks for collections.abc.sys",
    ),
    "INST": (b"(" + CODE + b"i__builtin__\neval\n.", "asks for builtins.eval"),
    "a name of two lines": (stack_global("os\n", "system") + b".", r"os\n.system"),
    "a persistent id": (b"\x80\x02K\x01Q.", "neither a module nor numbers"),
    # It is not even looked up: importing runs code, too.
    "a module": (b"cwicked\nanything\n.", "asks for wicked.anything"),
}


@pytest.mark.parametrize("kind", MALICIOUS)
def test_what_plain_data_do_not_need_is_refused(tmp_path, monkeypatch, kind):
    content, named = MALICIOUS[kind]
    sprung = tmp_path / "sprung"
    code = f'open({str(sprung)!r}, "w")'.encode()
    content = content.replace(CODE, b"X" + struct.pack("<i", len(code)) + code)
    (tmp_path / "wicked.py").write_bytes(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PickleError, match=r"data\.pkl is refused: .*") as caught:
        load(content, tmp_path)
    assert named in str(caught.value)
    assert not sprung.exists()
    if kind == "eval":
        pickle.loads(content).close()
        assert sprung.exists(), "premise: code strings of these tests do run"


NAMES = pickles._Unpickler(io.BytesIO(), ["models.RNNG"]).names
STATES = {
    "attributes": b"}(X\x0c\0\0\0__defaults__NX\x05\0\0\0stateNu",
    "slots": b"N}(X\x0c\0\0\0__defaults__)X\x05\0\0\0stateK\x01u\x86",
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_gives_no_state_to_what_it_finds(name, state):
    """A function's defaults, or an attribute of a class, would stay in this process."""
    before = {**vars(StandIn)}, pickles._Unpickler._tensor.__defaults__
    module, _, last = name.rpartition(".")
    content = f"c{module}\n{last}\n".encode() + STATES[state] + b"b."
    reader = pickles._Unpickler(io.BytesIO(content), ["models.RNNG"])
    try:
        reader.load()
    except (AttributeError, TypeError):
        pass  # it cannot be given any
    else:
        assert state == "attributes" and name not in pickles._STORAGES
    assert before == ({**vars(StandIn)}, pickles._Unpickler._tensor.__defaults__)


# -- damaged ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_truncated_pickle_is_named(tmp_path, protocol):
    content = pickle.dumps({"Q1": [("P31", "Q5")], "é": {1, 2.5, 2**40}}, protocol)
    for size in range(len(content)):
        # Half a name is another name.
        with pytest.raises(
            PickleError, match=r"data\.pkl is (not a readable pickle|refused)"
        ):
            load(content[:size], tmp_path)


# -- files of torch -----------------------------------------------------------------

MODULES = ("container.Sequential", "linear.Linear", "activation.ReLU")
CLASSES = [f"torch.nn.modules.{name}" for name in MODULES]
ZIPPED = pytest.mark.parametrize("zipped", [True, False])
GIVEN = pytest.mark.parametrize("classes", [CLASSES, []])
"""With classes, a row of pickles is read by our reader, and else by torch."""


def saved(content, *, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


@ZIPPED
@GIVEN
def test_tensors_come_out_as_they_went_in(zipped, classes):
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
    found = tensors(read_torch(saved(wanted, zipped=zipped), classes))
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype
        assert torch.equal(found[name], each), name
    found["whole"].zero_()
    assert found["turned"].any(), "each in memory of its own"


@ZIPPED
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_modules_are_records(zipped):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    found = read_torch(saved({"model": module}, zipped=zipped), CLASSES)["model"]
    assert isinstance(found, StandIn)
    found, wanted = tensors(parameters(found)), module.state_dict()
    assert found.keys() == wanted.keys() == {"0.weight", "0.bias", "2.weight"}
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@ZIPPED
@GIVEN
def test_code_in_a_file_of_torch_is_not_run(tmp_path, zipped, classes):
    content = saved([Runs(tmp_path / "sprung")], zipped=zipped)
    with pytest.raises(PickleError, match=r"^it asks for (posix|nt)\.system") as err:
        read_torch(content, classes)
    assert "weights_only" not in str(err.value), "torch's advice is dangerous"
    assert not (tmp_path / "sprung").exists()


def in_row(pickled: bytes, *counted: tuple[int, bytes]) -> bytes:
    """What torch before 1.6 would read: pickles, and numbers after their count."""
    heads = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    keys = [str(n) for n in range(len(counted))]
    parts = [*(pickle.dumps(h, 2) for h in heads), pickled, pickle.dumps(keys, 2)]
    return b"".join([*parts, *(struct.pack("<q", n) + x for n, x in counted)])


class Numbers(tuple):
    """A persistent id, as torch refers to numbers elsewhere in a file."""


class Odd:
    """A tensor that says of itself what it likes."""

    def __init__(self, size, stride, offset: int = 0, kind=torch.FloatStorage) -> None:
        numbers = Numbers(("storage", kind, "0", "cpu", 4))
        self.said = numbers, offset, tuple(size), tuple(stride), False, {}

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.said


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Numbers) else None


def table(**entries) -> bytes:
    file = io.BytesIO()
    Pickler(file, 2).dump(entries)
    return file.getvalue()


FOUR = (4, struct.pack("<4f", 1, 2, 3, 4))
GOOD = table(one=Odd([2, 2], [1, 2]))
BAD = {
    "larger than its numbers": (in_row(table(one=Odd([5], [1])), FOUR), "is damaged"),
    "beyond its numbers": (in_row(table(one=Odd([2], [1], 3)), FOUR), "is damaged"),
    "a negative size": (in_row(table(one=Odd([-4], [1])), FOUR), "is damaged"),
    "more sizes than strides": (in_row(table(one=Odd([2, 2], [1])), FOUR), "is dam"),
    "of another kind": (
        in_row(table(one=Odd([1], [1], kind=torch.ComplexFloatStorage)), FOUR),
        "asks for torch.Complex",
    ),
    "no numbers": (in_row(GOOD), "is damaged"),
    "fewer numbers than it says": (in_row(GOOD, (5, FOUR[1])), "numbers are missing"),
    "a negative count": (in_row(GOOD, (-1, FOUR[1])), "numbers are missing"),
    "an exabyte": (in_row(GOOD, (1 << 60, FOUR[1])), "numbers are missing"),
    "another program's": (pickle.dumps(3), "torch has not saved it"),
    "nothing": (b"", "is damaged"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_row_that_is_damaged_is_refused(kind):
    content, message = BAD[kind]
    assert read_torch(in_row(GOOD, FOUR), CLASSES)["one"].tolist() == [[1, 3], [2, 4]]
    with pytest.raises(PickleError, match=message):
        read_torch(content, CLASSES)


@ZIPPED
@GIVEN
def test_every_truncated_file_is_refused(zipped, classes):
    content = saved({"one": torch.ones(3)}, zipped=zipped)
    for size in range(0, len(content), 1 if len(content) < 500 else 7):
        # Half a name is another name.
        with pytest.raises(PickleError, match=r"it is damaged|torch|it asks for"):
            read_torch(content[:size], classes)


ODD = {
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(1 << 40, device="meta"),
    "a list": [1.0],
    "NaN": torch.tensor([1.0, torch.nan]),
}


@pytest.mark.parametrize("kind", ODD)
def test_tables_of_other_kinds_are_refused(kind):
    message = "NaN" if kind == "NaN" else "'odd' is no tensor of numbers"
    with pytest.raises(PickleError, match=message):
        tensors(read_torch(saved({"odd": ODD[kind]}, zipped=True)))
    for other in ([], {3: torch.ones(2)}):
        with pytest.raises(PickleError, match=r"no table|no name"):
            tensors(other)


# -- modules ------------------------------------------------------------------------


def record(**attributes) -> StandIn:
    found = StandIn()
    found.state = {"_parameters": {}, "_modules": {}} | attributes
    return found


def within_itself() -> StandIn:
    outer = record()
    outer.state["_modules"]["m"] = record(_modules={"m": outer})
    return outer


BAD_MODULES = {
    "no record": 3,
    "no state": StandIn(),
    "no table of parameters": record(_parameters=None),
    "no module within": record(_modules={"m": 1}),
    "within itself": within_itself(),
}


@pytest.mark.parametrize("kind", BAD_MODULES)
def test_modules_that_are_none_are_refused(kind):
    with pytest.raises(PickleError, match="it holds no module"):
        parameters(BAD_MODULES[kind])
