"""Plain data come out as they went in; whatever else a pickle asks for is refused."""

from __future__ import annotations

import collections
import pickle
import pickletools
import struct
from pathlib import Path

import pytest

from lm_latent_eval.convert.unpickling import (
    INSTRUCTIONS,
    MULTIPLE,
    PickleError,
    load_pickle,
)
from tests.convert.hostile import Runs
from tests.limits import alone, at_most


def load(content: bytes, folder: Path):
    path = folder / "data.pkl"
    path.write_bytes(content)
    return load_pickle(path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_come_out_as_they_went_in(tmp_path, protocol):
    shared = ("R:P31", "Q5")
    counts = collections.Counter({"Ada": 2})
    names = collections.defaultdict(list, {"Q7": ["Ada", "Ada Lovelace \u2013 é"]})
    data = {
        "Q7": [shared, ("P19", "Q84")],
        "Q8": [shared],
        "names": names,
        "sets": {"a", "b"},
        "frozen": frozenset({("a", "é"), -(2**59)}),
        "counts": counts,
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


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def stack_global(module: str, name: str) -> bytes:
    return b"\x80\x04" + short(module) + short(name) + b"\x93"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
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
MALICIOUS = {
    "eval": (b"c__builtin__\neval\n" + CALL_IT, "builtins.eval"),
    "exec by name on the stack": (
        stack_global("builtins", "exec") + CALL_IT,
        "builtins.exec",
    ),
    "a nested name": (
        stack_global("collections", "OrderedDict.__init__.__globals__") + CALL,
        "collections.OrderedDict.__init__",
    ),
    "a dotted name of an allowed type": (
        stack_global("builtins", "dict.fromkeys") + CALL_IT,
        "builtins.dict.fromkeys",
    ),
    "a dotted module": (
        stack_global("collections.abc", "sys") + b".",
        "collections.abc.sys",
    ),
    "INST": (b"(" + CODE + b"i__builtin__\neval\n.", "INST"),
    "NEWOBJ": (b"\x80\x02c__builtin__\ndict\n)\x81.", "NEWOBJ"),
    "BUILD": (b"ccollections\nCounter\n}b.", "BUILD"),
    "a name of two lines": (stack_global("os\n", "system") + b".", r"os\n.system"),
    "a persistent id on the stack": (b"\x80\x02K\x01Q.", "BINPERSID"),
    "a registered extension": (b"\x80\x02\x82\xf0.", "EXT1"),
    # It is not even looked up: importing runs code, too.
    "a module": (b"cwicked\nanything\n.", "wicked.anything"),
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


def test_instructions_that_plain_data_do_not_need_are_not_carried_out():
    assert {op.name for op in pickletools.opcodes} - INSTRUCTIONS == {
        *("INST", "OBJ", "NEWOBJ_EX"),
        *("EXT1", "EXT2", "EXT4"),
        *("PERSID", "NEXT_BUFFER", "READONLY_BUFFER"),
    }


# -- damaged ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_truncated_pickle_is_named(tmp_path, protocol):
    content = pickle.dumps({"Q1": [("P31", "Q5")], "é": {1, 2.5, 2**40}}, protocol)
    for size in range(len(content)):
        # Half a name is another name.
        with pytest.raises(
            PickleError, match=r"data\.pkl is (not a readable pickle|refused)"
        ):
            load(content[:size], tmp_path)


DECLARED = {
    "a string": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "a byte array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a short string": b"X" + struct.pack("<I", 0x7FFFFFFF) + b"x.",
    "a number": b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "a place in the memo": b"Nr" + struct.pack("<I", 0xFFFFFFFE) + b".",
}

HARMLESS = ("a frame", "a place in the memo")


def put(place: int) -> bytes:
    return b"r" + struct.pack("<I", place)


def get(place: int) -> bytes:
    return b"j" + struct.pack("<I", place)


# Of each a kilobyte could ask for gigabytes, or for hours: (t, t) of (t, t) of ...
TWICE = (
    b"K\x01"
    + b"\x85"
    + put(0)
    + b"0"
    + b"".join(get(i) + get(i) + b"\x86" + put(i + 1) + b"0" for i in range(50))
    + get(50)
)
NAMES = b"(" + b"\x8c\0" * 50_000 + b"t" + put(0) + b"0"
BOTH = b"".join(b"]" + put(i) + (get(i - 1) + b"a") * 2 for i in range(1, 23))
DIGITS = b"\x8b" + struct.pack("<i", 2_000_000) + b"\x7f" * 2_000_000
PRIME = 2**61 - 1
"""Of which all multiples have the same hash."""
MULTIPLES = b"".join(
    b"\x8a\x0a" + (PRIME * n).to_bytes(10, "little") + b"N" for n in range(1, 100_000)
)
COPY = b"c__builtin__\nlist\n" + get(0) + b"\x85R"
STRING = b"X" + struct.pack("<i", 50_000) + b"x" * 50_000 + put(0)
LABOURS = {
    "has a key that is no name": {
        "a key that is twice itself": b"}" + TWICE + b"Ns.",
        "keys that are": b"}(" + TWICE + b"Nu.",
        "keys at once": b"(" + TWICE + b"Nd.",
        "a member": b"\x8f(" + TWICE + b"\x90.",
        "a member of a frozen set": b"(" + TWICE + b"\x91.",
        "a member of a called set": b"c__builtin__\nset\n(" + TWICE + b"l\x85R.",
        "a key of a called dictionary": (
            b"ccollections\nOrderedDict\n(" + TWICE + b"N\x86l\x85R."
        ),
        "a wide key again and again": b"}" + NAMES + (get(0) + b"Ns") * 50_000,
        "a number of many digits as a key": b"}" + DIGITS + b"Ns.",
        "numbers with the same hash": b"}(" + MULTIPLES + b"u.",
    },
    "copies the same data again": {
        "a list copied": b"](" + b"N" * 50_000 + b"e" + put(0) + COPY * 50_000 + b".",
        "empty sets": b"\x80\x04](" + b"\x8f" * 1_000_000 + b"e.",
    },
    "holds the same data again": {
        "a list of twice a list": b"]" + put(0) + BOTH + b".",
        "a list within itself": b"]" + put(0) + get(0) + b"a.",
        "a long string again and again": (
            b"]" + STRING + b"a" + (get(0) + b"a") * 50_000 + b"."
        ),
    },
}


@pytest.mark.parametrize(
    ("said", "kind"),
    [(said, kind) for said, kinds in LABOURS.items() for kind in kinds],
)
def test_labours_without_end_are_not_begun(tmp_path, said, kind):
    """In a process of its own: some would end it."""
    (tmp_path / "data.pkl").write_bytes(LABOURS[said][kind])
    code = (
        "from pathlib import Path\n"
        "from lm_latent_eval.convert.unpickling import load_pickle\n"
        "try:\n"
        "    load_pickle(Path('data.pkl'))\n"
        "except ValueError as err:\n"
        "    print(err)\n"
    )
    found = alone(tmp_path, code, memory=1 << 29, seconds=30)
    assert f"data.pkl is refused: it {said}" in found


MOST = {
    "lists": b"]" * 3_000_000,
    "dictionaries": b"}" * 3_000_000,
    "places in the memo": b"N" + b"\x94" * 3_000_000,
    "marks": b"(" * 3_000_000,
    "tuples in tuples": b"N" + b"\x85" * 3_000_000,
    "sets": b"(" + b"\x8f" * 1_000_000 + b"l",
    "records": b"cnumpy\nx\n" + put(0) + (get(0) + b")R") * 400_000,
}


DAILY = ("records",)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.nightly] * (k not in DAILY)) for k in MOST],
)
def test_memory_is_a_bounded_multiple_of_the_file(tmp_path, kind):
    """Those bytes that make most, and a floor for what the interpreter takes."""
    (tmp_path / "data.pkl").write_bytes(content := MOST[kind] + b".")
    code = (
        "import io, os\n"
        "from pathlib import Path\n"
        "from lm_latent_eval.convert.unpickling import PickleError, Reader\n"
        "content = Path('data.pkl').read_bytes()\n"
        "try:\n"
        "    Reader(io.BytesIO(content), len(content), {}, None, ('numpy',)).load()\n"
        "except (PickleError, IndexError):\n"
        "    pass\n"
        "print('done', flush=True)\n"
        "os._exit(0)  # nested tuples would end the interpreter slowly\n"
    )
    most = (1 << 27) + 3 * MULTIPLE // 2 * len(content)
    assert alone(tmp_path, code, memory=most) == "done\n"


@pytest.mark.parametrize("kind", DECLARED)
def test_what_is_only_declared_to_be_large_costs_nothing(tmp_path, kind):
    """Reading takes well below a gigabyte; the reader in C takes 64 for the memo."""
    with at_most(1 << 29):
        if kind in HARMLESS:
            assert load(DECLARED[kind], tmp_path) is None
            return
        with pytest.raises(PickleError) as caught:
            load(DECLARED[kind], tmp_path)
    assert not isinstance(caught.value.__cause__, MemoryError)
