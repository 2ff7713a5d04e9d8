"""Every command on a full disk: one line that says so, and nothing is lost.

A limit on the size of files stands for the disk, since anyone may set it: the system
refuses to write on, as it does where there is no room (``tests/test_durable.py`` has
the errors of both).
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.models.checkpoint import load_checkpoint
from tests import tiny_checkpoint
from tests.allennlp_archive import write_tar
from tests.convert.test_entitynlm import archive

resource = pytest.importorskip("resource")

PLAN = Path(__file__).parent / "distortion" / "study" / "mini.json"
SENTENCES = ("the fox saw Ada .", "Ada saw Bo .", "Bo saw the fox .", "the fox .")


@contextmanager
def no_file_above(size: int):
    """Let this process and those that it starts write no larger file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What commands read."""
    folder = tmp_path_factory.mktemp("made")
    writing = tiny_checkpoint.orthography()
    tiny_checkpoint.write(folder / "kglm", tiny_checkpoint.kglm(), writing)
    (folder / "texts.txt").write_text("\n".join(SENTENCES * 20) + "\n")
    write_tar(folder / "entitynlm.tar.gz", archive("A"))
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2}
    (folder / "gpt2.json").write_text(json.dumps(config | {"n_positions": 128}))
    for name, first in (("train", 0), ("dev", 5000)):
        given = ["--language", "agreement", "--output", f"{folder / name}"]
        given += ["--num-sequences", "60", "--first", str(first)]
        assert main(["distort", "sample", *given]) == 0
    return folder


COMMANDS = {
    "estimate": (
        "estimate {made}/kglm --data {made}/texts.txt --num-samples 20 "
        "--output {out}.jsonl",
        3_000,
    ),
    "study": (
        "study --pretrained {made}/kglm --data {made}/texts.txt --num-samples 20 "
        "--replicate 4 --temperatures 1 --beam-widths 1 --output {out}",
        3_000,
    ),
    "train": (
        "train lstm --data {made}/texts.txt --dev {made}/texts.txt --epochs 2 "
        "--hidden-size 9 --embedding-dim 8 --output {out}",
        8_000,
    ),
    "convert": (
        "convert entitynlm --archive {made}/entitynlm.tar.gz --output {out}",
        4_000,
    ),
    "sample": (
        "distort sample --language agreement --num-sequences 3000 --output {out}",
        20_000,
    ),
    "language": (
        "distort sample --language agreement --num-sequences 100 --output {out}",
        2_000,
    ),
    "a learner's weights": (
        "distort train --config {made}/gpt2.json --data {made}/train --dev {made}/dev "
        "--epochs 1 --learning-rate 0.01 --device cpu --output {out}",
        6_000,
    ),
    "a learner's optimizer": (
        "distort train --config {made}/gpt2.json --data {made}/train --dev {made}/dev "
        "--epochs 1 --learning-rate 0.01 --device cpu --output {out}",
        16_000,
    ),
    "distort study": (
        f"distort study --plan {PLAN} --jobs 2 --device cpu --output {{out}}",
        4_000,
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_told_in_one_line(made, tmp_path, capfd, name):
    command, size = COMMANDS[name]
    arguments = command.format(made=made, out=tmp_path / "out").split()
    with no_file_above(size):
        assert main(arguments) == 2
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    (said,) = [one for one in shown.splitlines() if "lm-latent-eval: " in one]
    assert "cannot be written (" in said
    assert "make room and repeat the command" in said
    if name != "distort study":  # whose whole run takes minutes (tests/test_crash.py)
        assert main(arguments) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
def test_a_table_that_cannot_be_printed_is_one_line(made):
    code = "import sys; from lm_latent_eval.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "estimate", f"{made}/kglm"]
    command += ["--data", f"{made}/texts.txt", "--num-samples", "2"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    after = done.stderr.splitlines()[-1]
    assert after.startswith("lm-latent-eval: the output cannot be written (No space")
    assert "Exception" not in done.stderr


def test_a_checkpoint_that_does_not_fit_is_not_loaded(made, tmp_path, capsys):
    """Written in part, it lacks its weights, and says so."""
    arguments = COMMANDS["convert"][0].format(made=made, out=tmp_path / "out").split()
    with no_file_above(COMMANDS["convert"][1]):
        assert main(arguments) == 2
    with pytest.raises(ValueError, match="out"):
        load_checkpoint(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.partial"))
