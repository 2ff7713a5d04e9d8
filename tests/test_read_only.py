"""Folders that nobody may write to: one line that names the file."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from lm_latent_eval.cli import main
from tests.report.test_compare import hf_folder


@pytest.fixture
def read_only(tmp_path, spelled_directory):
    """Return a folder with a checkpoint and results that cannot be written to."""
    folder = tmp_path / "read_only"
    folder.mkdir()
    # Permissions do not bind a superuser, who may mount a file system instead.
    mounts = os.name == "posix" and os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if mounts and _fails(command):
        pytest.skip("no file system can be mounted here")
    try:
        shutil.copytree(spelled_directory, folder / "kglm")
        hf_folder(folder / "results")
        (folder / "texts.txt").write_text("the fox saw Ada .\nAda saw Bo .\n")
        if mounts:
            assert not _fails(["mount", "-o", "remount,ro", str(folder)])
        else:
            for path in (folder, *folder.iterdir()):
                path.chmod(0o555)
        yield folder
    finally:
        if mounts:
            assert not _fails(["umount", "--lazy", str(folder)])
        else:
            for path in (folder, *folder.iterdir()):
                path.chmod(0o755)


def _fails(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode != 0
    except OSError:
        return True


WRITES = {
    "estimate": "estimate {here}/kglm --data {here}/texts.txt --output {here}/o.jsonl",
    "study": "study --pretrained {here}/kglm --data {here}/texts.txt --output {here}/s",
    "train": "train lstm --data {here}/texts.txt --dev {here}/texts.txt --output "
    "{here}/t",
    "report": "report {here}/results --output {here}/page.html",
    "sample": "distort sample --language agreement --num-sequences 9 --output {here}/d",
}
READS = {
    "estimate": "estimate {here}/kglm --data {here}/texts.txt --num-samples 2",
    "recompute": "recompute {here}/results",
    "explain": "explain {here}/results",
}


@pytest.mark.parametrize("name", WRITES)
def test_what_cannot_be_written_is_named_in_one_line(read_only, capsys, name):
    before = sorted(read_only.rglob("*"))
    assert main(WRITES[name].format(here=read_only).split()) == 2
    said = capsys.readouterr().err.splitlines()
    assert "lm-latent-eval: [Errno" in said[-1] and str(read_only) in said[-1]
    assert len([line for line in said if "rrno" in line]) == 1
    assert sorted(read_only.rglob("*")) == before


@pytest.mark.parametrize("name", READS)
def test_what_is_only_read_needs_no_more(read_only, capsys, name):
    assert main(READS[name].format(here=read_only).split()) == 0
    assert capsys.readouterr().out
