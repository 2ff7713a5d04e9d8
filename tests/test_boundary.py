"""Whatever happens to a command's process is one line and an exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lm_latent_eval.cli import main
from tests.environment import HANGS, of_worker

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="processes as POSIX has them"
)

CTRL_C = """
import os, signal, sys
from lm_latent_eval import cli

# A job in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
cli._parser = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.exit(cli.main(["tasks"]))
"""


def run(*words, code=None, stdout=subprocess.PIPE, begin=None, **environment):
    """Run a command in a process of its own."""
    program = ["-c", code] if code else ["-m", "lm_latent_eval"]
    return subprocess.run(
        [sys.executable, *program, *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=begin,
        env=of_worker(**environment),
        text=True,
        timeout=HANGS,
    )


def said(done) -> str:
    """Return the only line that a command's process has left on stderr."""
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()[-1:]
    assert line.startswith("lm-latent-eval: ") and "Traceback" not in done.stderr
    return line


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("Ada saw the fox .\nthe fox saw Bo .\n")
    return path


def test_ascii_alone(kglm_directory, texts, tmp_path):
    output, given = tmp_path / "scores.jsonl", ["--num-samples", "5"]
    command = ["estimate", str(kglm_directory), "--data", str(texts)]
    assert main([*command, "--output", str(output), *given]) == 0
    done = run("recompute", output, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "\\xb1 over texts" in done.stdout


def test_a_closed_output():
    assert "standard output is closed" in said(run("tasks", begin=lambda: os.close(1)))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = run("tasks", stdout=writer, PYTHONUNBUFFERED=unbuffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_an_interruption_while_parsers_are_built():
    done = run(code=CTRL_C)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "\ninterrupted; nothing is kept\n"


@pytest.mark.parametrize("command", ["estimate", "text"])
def test_links_that_point_to_each_other(kglm_directory, texts, tmp_path, command):
    output, other = tmp_path / "a", tmp_path / "b"
    output.symlink_to(other)
    other.symlink_to(output)
    words = {
        "estimate": ["estimate", kglm_directory, "--data", texts],
        "text": ["text", texts],
    }
    done = run(*words[command], "--output", output)
    assert "symbolic links" in said(done) and str(output) in done.stderr


NO_MEMORY = """
import sys
from lm_latent_eval.cli import main
from tests.limits import at_most

command = ["estimate", *sys.argv[1:], "--device", "cpu", "--estimator", "is"]
assert main([*command, "--num-samples", "5"]) == 0  # imports what it needs
with at_most(1 << 25):
    sys.exit(main([*command, "--num-samples", "3e6"]))
"""


def test_no_memory_left(kglm_directory, texts):
    done = run(kglm_directory, "--data", texts, code=NO_MEMORY)
    assert "do not fit into the memory" in said(done) or "memory ran out" in said(done)
