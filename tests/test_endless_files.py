"""Devices and pipes in place of files: refused by name, neither read nor waited for.

A link to ``/dev/zero`` has no end, and a pipe that nobody writes to has no beginning.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.convert.unpickling import load_pickle
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.text.spacing import Spacing
from tests import kglm_archives, tiny_checkpoint
from tests.allennlp_archive import files, write_directory
from tests.memory_limit import at_most
from tests.test_file_names import results
from tests.time_limit import within

LITTLE, SECONDS = 1 << 28, 30
pytestmark = pytest.mark.skipif(
    not Path("/dev/zero").is_char_device(), reason="there is no /dev/zero"
)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


PUT = {"/dev/zero": _zero, "a pipe": os.mkfifo}


@pytest.fixture(params=PUT)
def endless(request):
    """Return what puts something endless in the place of a file."""

    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        PUT[request.param](path)

    return replace


def refused(capsys, *argv: str) -> str:
    with at_most(LITTLE), within(SECONDS):
        assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("lm-latent-eval: ") and said.count("\n") == 1
    return said


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "kglm"
    return tiny_checkpoint.write(
        folder, tiny_checkpoint.kglm(), tiny_checkpoint.orthography()
    )


def test_files_of_a_checkpoint(tmp_path, checkpoint, endless, capsys):
    names = sorted(path.name for path in checkpoint.iterdir())
    assert {"config.json", "manifest.json", "model.safetensors", "spacing.json"} <= {
        *names
    }, "premise"
    for name in names:
        folder = tmp_path / name
        shutil.copytree(checkpoint, folder)
        endless(folder / name)
        with at_most(LITTLE), within(SECONDS), pytest.raises(ValueError, match=name):
            load_checkpoint(folder)
    with (
        at_most(LITTLE),
        within(SECONDS),
        pytest.raises(ValueError, match=r"spacing\.json.* no file that has an end"),
    ):
        Spacing.load(tmp_path / "spacing.json")


@pytest.mark.parametrize("name", ["results_1.json", "record.parquet"])
def test_files_of_a_result(tmp_path, endless, capsys, name):
    folder = results(tmp_path / "results", "q")
    endless(folder / name)
    assert name in refused(capsys, "recompute", str(folder))


def test_a_log_of_samples(tmp_path, endless, capsys):
    folder = results(tmp_path / "results", "q")
    content = {"config": {"model": "hf"}, "configs": {"q": {}}}
    (folder / "results_1.json").write_text(json.dumps(content))
    endless(folder / "samples_q_1.jsonl")
    assert "samples_q_1.jsonl" in refused(capsys, "recompute", str(folder))


@pytest.mark.parametrize(
    "name", ["record_a_b_0.partial.sqlite", "settings.json", "x.parquet"]
)
def test_files_of_a_run_that_goes_on(tmp_path, endless, capsys, name):
    (tmp_path / "run").mkdir()
    if name == "x.parquet":
        (tmp_path / "run" / "settings.json").write_text("{}")
    endless(tmp_path / "run" / name)
    refused(capsys, "recompute", str(tmp_path / "run"))


def test_pickles_and_archives(tmp_path, endless, capsys):
    endless(tmp_path / "data.pkl")
    with (
        at_most(LITTLE),
        within(SECONDS),
        pytest.raises(ValueError, match=r"data\.pkl is .*no file that has an end"),
    ):
        load_pickle(tmp_path / "data.pkl")
    contents = files(*kglm_archives.golden_archive("B"))
    archive = write_directory(tmp_path / "archive", contents)
    for path in [path for path in archive.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        endless(path)
        output = str(tmp_path / "out")
        argv = ("convert", "kglm", "--archive", str(archive), "--output", output)
        refused(capsys, *argv)
        path.unlink()
        path.write_bytes(content)
    lda = ("lda", "--from", "gensim", "--model")
    for model in (("kglm", "--archive"), ("rnng", "--model"), lda):
        argv = ["convert", *model, str(tmp_path / "data.pkl")]
        assert "data.pkl" in refused(capsys, *argv, "--output", str(tmp_path / "out"))
