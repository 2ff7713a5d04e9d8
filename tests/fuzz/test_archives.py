"""Pickles and archives: what they hold, or a refusal; nothing run, in little memory."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.convert.archive import read_archive
from lm_latent_eval.convert.rnng import read
from lm_latent_eval.convert.unpickling import load_pickle
from tests import kglm_archives
from tests.allennlp_archive import files, write_tar
from tests.fuzz import pickles
from tests.fuzz.law import MEMORY, Refused, command, little_memory, outcome, same, share

NUMBERS = pickles.numbers_of(pickles.WEIGHT)
WEIGHTS = {"weight": pickles.WEIGHT.tolist()}
GOOD = pickles.written(pickles.model(pickles.linear()))
SAVED = {
    "zip": pickles.zipped(GOOD, {"0": NUMBERS}),
    "packed zip": pickles.zipped(GOOD, {"0": NUMBERS}, packed=True),
    "row": pickles.in_a_row(GOOD, {"0": (6, NUMBERS)}),
}
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "insert", "repeat")),
        st.floats(0, 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def edited(content: bytes, edits) -> bytes:
    """Return a damaged copy."""
    for how, where, byte in edits:
        at = round(where * max(len(content) - 1, 0))
        head, tail = content[:at], content[at:]
        if how == "flip":
            tail = bytes([tail[0] ^ (1 << byte % 8)]) + tail[1:] if tail else b""
        elif how == "cut":
            tail = tail[byte:]
        elif how == "insert":
            tail = bytes([byte]) + tail
        else:
            tail = tail[:byte] + tail
        content = head + tail
    return content


def read_in_little_memory(path):
    """Return the weights of a saved model as lists, or that it was refused by name."""

    def weights():
        with little_memory():
            return {name: tensor.tolist() for name, tensor in read(path)[0].items()}

    found = outcome(weights)
    assert not isinstance(found, Refused) or path.name in found.reason
    return found


@pytest.mark.parametrize("form", ["zip", "row"])
def test_what_was_saved_is_read(tmp_path, form):
    path = tmp_path / "model.pt"
    path.write_bytes(SAVED[form])
    assert read_in_little_memory(path) == WEIGHTS


@pytest.mark.parametrize("form", SAVED)
@share(3)
@given(edits=EDITS)
def test_a_damaged_model_is_refused_or_the_same(tmp_path_factory, form, edits):
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(edited(SAVED[form], edits))
    found = read_in_little_memory(path)
    if "zip" in form:  # a row of pickles has no sums that would tell
        same("a damaged archive", found, WEIGHTS)


@pytest.mark.parametrize("form", ["zip", "row"])
@pytest.mark.parametrize("which", pickles.MODULES)
def test_odd_modules(tmp_path, monkeypatch, which, form):
    monkeypatch.chdir(tmp_path)
    before = defaults()
    content = pickles.written(pickles.model(pickles.MODULES[which]))
    path = tmp_path / "model.pt"
    path.write_bytes(
        pickles.zipped(content, {"0": NUMBERS})
        if form == "zip"
        else pickles.in_a_row(content, {"0": (6, NUMBERS)})
    )
    read_in_little_memory(path)
    with little_memory():
        assert isinstance(command(*convert_rnng(path)), Refused), "it is no RNNG"
    assert not (tmp_path / "exploded").exists(), "something was run"
    assert defaults() == before, "a file has changed our own functions"


def convert_rnng(path):
    output = path.with_name("out")
    return "convert", "rnng", "--model", str(path), "--output", str(output)


def defaults():
    """Return what our functions that read models take for granted."""
    return {
        (module.__name__, name): (value.__defaults__, value.__kwdefaults__)
        for module in [*sys.modules.values()]
        if module.__name__.startswith("lm_latent_eval.models")
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
    }


@pytest.mark.parametrize("which", pickles.RAW)
def test_hostile_pickles(tmp_path, which):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickles.RAW[which])
    with little_memory():
        found = outcome(lambda: load_pickle(path) and None)
    assert found is None or path.name in found.reason
    path = tmp_path / "model.pt"
    for content in (
        pickles.zipped(pickles.RAW[which], {"0": NUMBERS}),
        pickles.in_a_row(pickles.RAW[which], {"0": (6, NUMBERS)}),
        pickles.RAW[which],
    ):
        path.write_bytes(content)
        assert isinstance(read_in_little_memory(path), Refused)


def _bomb() -> bytes:
    """Zeros: more than there is memory for, a thousand times the file's bytes."""
    file = io.BytesIO(pickles.zipped(GOOD, {"0": NUMBERS}))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data/1", bytes(MEMORY + (MEMORY >> 2)))
    return file.getvalue()


def _declared(size: int) -> bytes:
    """A member that says it has as many bytes."""
    content = bytearray(pickles.zipped(GOOD, {"0": NUMBERS}))
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        directory = archive.start_dir
    entry = content.index(b"PK\x01\x02", directory)
    entry = content.index(b"PK\x01\x02", entry + 4)  # of the numbers
    for at in (entry + 20, entry + 24):
        content[at : at + 4] = min(size, 0xFFFFFFFE).to_bytes(4, "little")
    return bytes(content)


def _twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for folder in "ab":
            archive.writestr(f"{folder}/data.pkl", GOOD)
            archive.writestr(f"{folder}/data/0", NUMBERS)
    return file.getvalue()


ARCHIVES = {
    "zeros": _bomb,
    "a member of 4 GB": lambda: _declared(1 << 32),
    "two pickles": _twice,
    "no pickle": lambda: pickles.zipped(GOOD, {}).replace(b"data.pkl", b"data.pkx"),
    "a count of 8 TB": lambda: pickles.in_a_row(GOOD, {"0": (1 << 40, NUMBERS)}),
    "a negative count": lambda: pickles.in_a_row(GOOD, {"0": (-1, NUMBERS)}),
    "a gzip": lambda: b"\x1f\x8b\x08\0" + bytes(100),
    "text": lambda: b"the fox saw Ada",
}


@pytest.mark.parametrize("which", ARCHIVES)
def test_hostile_archives(tmp_path, which):
    path = tmp_path / "model.pt"
    path.write_bytes(ARCHIVES[which]())
    same(which, read_in_little_memory(path), WEIGHTS)  # where none of it is needed
    with little_memory():
        assert isinstance(command(*convert_rnng(path)), Refused)


# -- AllenNLP's ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def allennlp(tmp_path_factory):
    """Return a golden archive, and what is in it."""
    folder = tmp_path_factory.mktemp("allennlp")
    contents = files(*kglm_archives.golden_archive("A"))
    path = write_tar(folder / "model.tar.gz", contents)
    return Golden(path.read_bytes(), contents, described(path))


class Golden:
    """A good archive, in a word for Hypothesis."""

    def __init__(self, content: bytes, files: dict[str, bytes], described: Any) -> None:
        self.content, self.files, self.described = content, files, described


def described(path):
    """Return what an archive holds, weights as lists."""
    archive = read_archive(path)
    weights = {name: t.tolist() for name, t in archive.weights.items()}
    return archive.config, weights, archive.vocabulary


@share(1)
@given(edits=EDITS)
def test_a_damaged_tar_is_refused_or_the_same(tmp_path_factory, allennlp, edits):
    path = tmp_path_factory.getbasetemp() / "model.tar.gz"
    path.write_bytes(edited(allennlp.content, edits))

    def found():
        with little_memory():
            return described(path)

    same("a damaged tar.gz", outcome(found), allennlp.described)


ODD_PARTS = {
    "nested": ("config.json", b"[" * 100_000),
    "a configuration in a list": ("config.json", b'[{"model": {"type": "kglm"}}]'),
    "a type that is a number": ("config.json", b'{"model": {"type": 3}}'),
    "a model that is a name": ("config.json", b'{"model": "kglm"}'),
    "sizes in words": (
        "config.json",
        json.dumps(
            {"model": {"type": "kglm", "hidden_size": "many", "num_layers": True}}
        ).encode(),
    ),
    "no patterns": ("vocabulary/non_padded_namespaces.txt", b"\xff"),
    "words of another encoding": ("vocabulary/tokens.txt", "é".encode("utf-16")),
    "no words": ("vocabulary/tokens.txt", b""),
    "weights of text": ("weights.th", b"the fox"),
    "weights that run": ("weights.th", pickle.dumps(print)),
    "no weights": ("weights.th", b""),
    "weights in a list": (
        "weights.th",
        pickles.zipped(pickles.written([1, 2, 3]), {}),
    ),
    **{
        f"weights of {which}": ("weights.th", content)
        for which, content in pickles.RAW.items()
    },
}


@pytest.mark.parametrize("which", ODD_PARTS)
def test_odd_parts_of_an_archive(tmp_path, allennlp, which):
    name, content = ODD_PARTS[which]
    path = write_tar(tmp_path / "model.tar.gz", {**allennlp.files, name: content})
    output = str(tmp_path / "out")
    for model in ("kglm", "entitynlm"):
        with little_memory():
            found = command(
                "convert", model, "--archive", str(path), "--output", output
            )
        assert isinstance(found, Refused)
        assert "weights_only" not in found.reason, "advice to run what is in a file"
