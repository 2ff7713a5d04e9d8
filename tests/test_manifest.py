"""A directory is what its manifest says; large files are hashed once a state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lm_latent_eval import manifest
from lm_latent_eval.manifest import ManifestError, verify, write


@pytest.fixture
def folder(tmp_path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "graph.safetensors").write_bytes(bytes(100))
    (directory / "notes.txt").write_text("no number depends on this")
    (directory / "training_state.pt").write_bytes(b"nor on this")
    (directory / "._config.json").write_bytes(b"nor on what a file manager leaves")
    write(directory)
    return directory


def entries(directory: Path) -> dict:
    return json.loads((directory / manifest.FILE_NAME).read_text())["files"]


def test_it_lists_what_numbers_depend_on(folder):
    assert entries(folder) == {
        "config.json": {
            # printf '{}' | sha256sum
            "sha256": "44136fa355b3678a1146ad16f7e8649e"
            "94fb4fc21fe77e8310c060f61caaff8a",
            "size": 2,
        },
        "graph.safetensors": {
            # head -c 100 /dev/zero | sha256sum
            "sha256": "cd00e292c5970d3c5e2f0ffa5171e555"
            "bc46bfc4faddfb4a418b6840b86e79a3",
            "size": 100,
        },
    }
    assert verify(folder) == write(folder)


def test_the_digest_is_of_names_and_content(folder, tmp_path):
    first = verify(folder)
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "notes.txt").write_text("changed")
    assert verify(tmp_path / "other") == first
    (folder / "config.json").rename(folder / "other.json")
    assert write(folder) != first


def written(name: str, content: str):
    """Write a file, without asking the manifest."""
    return lambda folder: (folder / name).write_text(content)


def gone(name: str):
    return lambda folder: (folder / name).unlink()


def listed(name: str, entry):
    """Change an entry of the manifest itself; None takes it away."""

    def change(folder):
        path = folder / manifest.FILE_NAME
        content = json.loads(path.read_text())
        content["files"].pop(name, None)
        content["files"] |= {} if entry is None else {name: entry}
        path.write_text(json.dumps(content))

    return change


CONFIG, FILE = "config.json", manifest.FILE_NAME
GOOD = {"sha256": "0" * 64, "size": 2}
WRONG = {
    "no manifest": (gone(FILE), r"manifest\.json is missing, .* writing interrupted"),
    "another content": (written(CONFIG, "[]"), r"config\.json is altered: its SHA-256"),
    "another length": (written(CONFIG, "{ }"), "3 bytes, but 2 by manifest"),
    "a missing file": (gone("graph.safetensors"), "is missing, though manifest"),
    "a foreign file": (written("spacing.json", "[]"), "belongs to something else"),
    "a file that is not listed": (listed(CONFIG, None), r"config\.json belongs to"),
    "a file elsewhere": (listed("../model/config.json", GOOD), "is missing, though"),
    "no hash": (listed(CONFIG, GOOD | {"sha256": "0"}), "'0': expected 64"),
    "no size": (listed(CONFIG, GOOD | {"size": True}), "True: expected a whole"),
    "more than an entry": (listed(CONFIG, GOOD | {"url": "x"}), "not a readable"),
    "another format": (
        written(FILE, '{"format": "2", "files": {}}'),
        "its format is '2', not 'lm-latent-eval-manifest-1'",
    ),
    "no JSON": (written(FILE, "{"), "not a readable manifest"),
    "a deep one": (written(FILE, "[" * 100_000), "not a readable manifest"),
}


def test_a_file_that_git_lfs_has_not_fetched_is_told(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2\n"
    written(CONFIG, pointer)(folder)
    with pytest.raises(ManifestError, match=r"config\.json is a pointer.*git lfs pull"):
        verify(folder)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_as_listed_is_refused(folder, name):
    change, message = WRONG[name]
    change(folder)
    with pytest.raises(ManifestError, match=message) as caught:
        verify(folder)
    assert "\n" not in str(caught.value)
    assert f"`lm-latent-eval manifest {folder}`" in str(caught.value)
