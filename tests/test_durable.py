"""Files are whole or not there, on disks that are full or read-only, too."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from lm_latent_eval import files
from lm_latent_eval.cli import main
from lm_latent_eval.files import NoRoomError, no_room, replacing, write_text
from lm_latent_eval.ledger.files import only_writer
from tests import tiny_checkpoint
from tests.limits import no_file_above
from tests.report.test_compare import hf_folder
from tests.watching import watch

# -- whole or not at all -------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, RuntimeError, KeyboardInterrupt])
def test_a_file_is_replaced_when_it_is_whole(tmp_path, stop):
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(RuntimeError, KeyboardInterrupt), replacing(path) as part:
        part.write_text("ne")
        if stop is not None:
            raise stop
        assert path.read_text() == "old"
        part.write_text("new")
    assert path.read_text() == ("old" if stop else "new")
    assert [*tmp_path.iterdir()] == [path]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a power cut could leave a name with nothing behind it."""
    done = watch(monkeypatch, os, "fsync", lambda *_: "fsync")
    watch(monkeypatch, os, "replace", lambda *_: "replace", done)
    write_text(tmp_path / "file", "text")
    assert done == ["fsync", "replace", "fsync"], "the file, its name, the folder"


def test_a_link_goes_on_pointing_to_the_file(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")
    write_text(link, "one")
    write_text(link, "two")
    assert link.is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "two"
    write_text(Path(os.devnull), "a device is written as it is")
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    """Even where somebody guesses the name."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    tokens = iter(["00", "00", "11"])
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: next(tokens))
    planted = tmp_path / ".page.html.00.partial"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "page.html", "text")
    assert planted.is_symlink() and victim.read_text() == "mine"
    planted.unlink()
    planted.symlink_to(tmp_path / "new")
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "page.html", "text")
    assert not (tmp_path / "new").exists()
    write_text(tmp_path / "page.html", "text")
    assert (tmp_path / "page.html").read_text() == "text"


def test_temporary_files_of_killed_writers_are_removed_once_they_are_old(tmp_path):
    old, new, other = (
        tmp_path / f".{name}.partial" for name in ("a[b].1", "a[b].2", "ab.3")
    )
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    write_text(tmp_path / "a[b]", "text")
    assert {*tmp_path.iterdir()} == {tmp_path / "a[b]", new, other}


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_permissions_are_those_of_a_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "weights") as path:
            path.unlink()  # as libraries do that write a private file first
            path.touch(0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "weights").stat().st_mode & 0o777 == 0o640


# -- full disks ----------------------------------------------------------------------


def test_whoever_writes_a_full_disk_is_told_in_one_line(tmp_path):
    path = tmp_path / "file"
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with pytest.raises(NoRoomError) as caught, replacing(path):
            raise OSError(code, os.strerror(code))
        said = str(caught.value)
        assert said.startswith(f"{path} cannot be written ({os.strerror(code)}): make")
        assert "\n" not in said
        # It comes from another process, too.
        assert str(pickle.loads(pickle.dumps(caught.value))) == said
    with pytest.raises(PermissionError), replacing(path):
        raise PermissionError(errno.EACCES, "no")
    assert not [*tmp_path.iterdir()]
    assert no_room(ValueError("os error 28")) is None


def _into_opened(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(torch.zeros(100_000), file)


def _into_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file:
        file.write(bytes(100_000))


WRITERS = {
    "text": lambda path: path.write_text("a" * 100_000),
    "safetensors": lambda path: save_file({"a": torch.zeros(100_000)}, path),
    "tokenizers": lambda path: Tokenizer(
        WordLevel({str(i): i for i in range(9999)})
    ).save(str(path)),
    "torch": lambda path: torch.save(torch.zeros(100_000), path),
    "torch, opened": _into_opened,
    "arrow": _into_arrow,
}


@pytest.mark.parametrize("library", WRITERS)
def test_every_library_says_that_a_file_cannot_grow(tmp_path, library):
    """The system's own refusal, under a limit on the size of files."""
    with (
        no_file_above(20_000),
        pytest.raises(NoRoomError) as caught,
        replacing(tmp_path / "file") as path,
    ):
        WRITERS[library](path)
    assert str(caught.value).startswith(f"{tmp_path / 'file'} cannot be written (")
    assert not [*tmp_path.iterdir()]


# -- the command line ----------------------------------------------------------------


EXPLAIN = "lm_latent_eval.cli.results._explain"
"""Is replaced by what goes wrong."""


def test_sigterm_is_ctrl_c(tmp_path, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def run(_):
        with only_writer(tmp_path, "the draws"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:  # `timeout` sends two: to a process, and to its group
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(EXPLAIN, run)
    assert main(["explain", "anything"]) == 128 + signal.SIGTERM
    said = f"interrupted; the draws are kept in {tmp_path}, and the same command goes"
    assert capsys.readouterr().err.strip().startswith(said)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_full_disk_behind_any_error_is_one_line(monkeypatch, capsys):
    def run(_):
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "figure.png")
        except OSError as err:
            raise RuntimeError("drawing failed") from err

    monkeypatch.setattr(EXPLAIN, run)
    assert main(["explain", "anything"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("lm-latent-eval: figure.png cannot be written (No space")
    assert shown.count("\n") == 1


# -- commands on a full disk, and in folders that cannot be written to -----------------
#
# A limit on the size of files stands for the disk, since anyone may set it: the system
# refuses to write on, as it does where there is no room.

SENTENCES = ("the fox saw Ada .", "Ada saw Bo .", "Bo saw the fox .", "the fox .")
WRITES = (
    "estimate {made}/kglm --data {made}/texts.txt --output {no}/o.jsonl",
    "train lstm --data {made}/texts.txt --dev {made}/texts.txt --epochs 2 "
    "--hidden-size 9 --embedding-dim 8 --output {no}/t",
    "report {results} --output {no}/page.html",
    "distort sample --language agreement --num-sequences 9 --output {no}/d",
)
READS = (
    "estimate {made}/kglm --data {made}/texts.txt --num-samples 2",
    "recompute {results}",
    "explain {results}",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What commands read."""
    folder = tmp_path_factory.mktemp("made")
    tiny_checkpoint.write(folder / "kglm", tiny_checkpoint.kglm())
    (folder / "texts.txt").write_text("\n".join(SENTENCES * 3) + "\n")
    return folder


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
def test_a_table_that_cannot_be_printed_is_one_line(made):
    command = [
        sys.executable,
        "-m",
        "lm_latent_eval",
        *READS[0].format(made=made).split(),
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    after = done.stderr.splitlines()[-1]
    assert after.startswith("lm-latent-eval: the output cannot be written (No space")
    assert "Exception" not in done.stderr


def test_what_cannot_be_written_is_named_in_one_line(made, tmp_path, capsys):
    results, no = hf_folder(tmp_path / "results"), tmp_path / "file"
    no.touch()
    for command in WRITES:
        assert main(command.format(made=made, results=results, no=no).split()) == 2
        said = capsys.readouterr().err.splitlines()
        assert "lm-latent-eval: [Errno" in said[-1] and str(no) in said[-1]
        assert len([line for line in said if "rrno" in line]) == 1


def test_what_is_only_read_is_not_written_beside(made, tmp_path, capsys):
    """Its folder may be one that nobody can write to."""
    results = hf_folder(tmp_path / "results")
    folders = [made, made / "kglm", results]
    before = [folder.stat().st_mtime_ns for folder in folders]
    for command in READS:
        assert main(command.format(made=made, results=results).split()) == 0
        assert capsys.readouterr().out
    assert [folder.stat().st_mtime_ns for folder in folders] == before
