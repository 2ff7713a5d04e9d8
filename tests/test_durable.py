"""Files are whole or not there; the disk may be full."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.files import NoRoomError, no_room, replacing, write_text
from lm_latent_eval.ledger.files import only_writer

# -- whole or not at all -------------------------------------------------------------


class StoppedError(Exception):
    pass


def test_a_file_is_replaced_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("ne")
        assert path.read_text() == "old"
        partial.write_text("new")
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("stop", [StoppedError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, stop):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(stop), replacing(path) as partial:
        partial.write_text("half")
        raise stop
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a power cut could leave a name with nothing behind it."""
    done = []
    for name in ("fsync", "replace"):
        plain = getattr(os, name)

        def noted(*args, name=name, plain=plain):
            done.append(name)
            return plain(*args)

        monkeypatch.setattr(os, name, noted)
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


def test_a_device_is_written_as_it_is():
    write_text(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


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
    assert no_room(ValueError("os error 28")) is None


WRITERS = {
    "text": "path.write_text('a' * 100_000)",
    "safetensors": "save_file({'a': torch.zeros(100_000)}, path)",
    "tokenizers": "Tokenizer(WordLevel(vocabulary)).save(str(path))",
    "torch": "torch.save({'a': torch.zeros(100_000)}, path)",
    "torch, opened": "torch.save({'a': torch.zeros(100_000)}, path.open('wb'))",
    "arrow": "pa.OSFile(str(path), 'wb').write(b'0' * 100_000)",
}
LIMITED = """
import resource, sys
from pathlib import Path
import pyarrow as pa, torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from lm_latent_eval.files import replacing, NoRoomError
vocabulary = {str(i): i for i in range(9999)}
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for written in sys.argv[2:]:
    try:
        with replacing(Path(sys.argv[1])) as path:
            exec(written)
    except NoRoomError as err:
        print(err)
"""


def test_every_library_says_that_a_file_cannot_grow(tmp_path):
    """The system's own refusal, under a limit on the size of files."""
    pytest.importorskip("resource")
    command = [sys.executable, "-c", LIMITED, tmp_path / "file", *WRITERS.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRITERS), done
    for line in lines:
        assert line.startswith(f"{tmp_path / 'file'} cannot be written (")
    assert not (tmp_path / "file.partial").exists()


# -- the command line ----------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    """Replace what ``lm-latent-eval explain`` does."""

    def replace(run):
        monkeypatch.setattr("lm_latent_eval.cli.results._explain", run)
        return main(["explain", "anything"])

    return replace


def test_sigterm_is_ctrl_c(command, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def run(_):
        with only_writer(tmp_path, "the draws"):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    assert command(run) == 128 + signal.SIGTERM
    shown = capsys.readouterr().err.strip()
    assert shown == (
        f"interrupted; the draws are kept in {tmp_path}, and the same command goes on "
        "from there"
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_sigterm_changes_nothing(command, capsys):
    """``timeout`` sends two: to a process, and to its group."""

    def run(_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    assert command(run) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "\ninterrupted; nothing is kept\n"


def test_ctrl_c_says_what_is_kept(command, capsys):
    def run(_):
        raise KeyboardInterrupt

    assert command(run) == 130
    assert capsys.readouterr().err == "\ninterrupted; nothing is kept\n"


def test_a_full_disk_behind_any_error_is_one_line(command, capsys):
    def run(_):
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "figure.png")
        except OSError as err:
            raise RuntimeError("drawing failed") from err

    assert command(run) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("lm-latent-eval: figure.png cannot be written (No space")
    assert shown.count("\n") == 1


def test_other_errors_are_not_disguised(command):
    def run(_):
        raise RuntimeError("a mistake of ours")

    with pytest.raises(RuntimeError, match="a mistake of ours"):
        command(run)
