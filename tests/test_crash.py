"""kill -9 at random moments: repeating the command gives what an unkilled run gives.

Draws and records are the same. Numbers that were saved before a kill are the same to
the byte; others may share their batches with other texts, which moves float64 sums by
parts in 10^12 (``ROUNDING``). ``make crash`` kills twenty times, plain tests twice.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lm_latent_eval.distortion.columns import ScoresFolder
from lm_latent_eval.distortion.study.plan import DistortionPlan, Layout, Learners
from lm_latent_eval.harness.wrappers.cot import UNFINISHED, read_unfinished
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.report.thoughts import thought_files
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.files import PIECES, read_record
from lm_latent_eval.study.rows import read as read_rows
from lm_latent_eval.study.totals import ledger
from lm_latent_eval.wrappers.cot.thoughts import row_of
from tests.conftest import PROJECT
from tests.harness.test_processes import CHOICES, TASK
from tests.killing import (
    ENOUGH,
    KILLS,
    Command,
    latent_cot,
    latent_eval,
    lm_eval,
    num_bytes,
)
from tests.wrappers.cot import tiny

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does"),
]

ROUNDING = 1e-11
IN_EXPONENTS = 1e-4
NUM_TEXTS = 24
PLAN = PROJECT / "tests" / "distortion" / "study" / "mini.json"


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    """Texts of many lengths, which batches mix."""
    words = ("Ada", "saw", "the", "fox", ".", "Bo")
    path = tmp_path_factory.mktemp("text") / "texts.txt"
    lines = (
        " ".join(words[(n + i) % 6] for i in range(1 + n % 7)) for n in range(NUM_TEXTS)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def killed(command: Callable[[Path], Command], folder: Path) -> tuple[Path, Path]:
    """Return what a command leaves that was killed at times, and one that was not."""
    cut, whole = folder / "cut", folder / "whole"
    repeated, total = command(cut), command(whole).finish()
    assert len([*repeated.kill(total)]) in range(ENOUGH, KILLS + 1)
    repeated.finish()
    return cut, whole


def test_estimate(spelled_directory, text_file, tmp_path):
    def command(output: Path) -> Command:
        given = ["estimate", str(spelled_directory), "--data", str(text_file)]
        given += ["--num-samples", "20", "--batch-size", "3", "--output", str(output)]
        return Command(
            latent_eval,
            given,
            tmp_path / "log",
            lambda: len(answers(output)),
        )

    def records(output: Path) -> tuple[str, dict[int, str]]:
        head, *lines = output.read_text().splitlines()
        found = {json.loads(line)["document"]: line for line in lines}
        assert len(found) == len(lines), "no record twice"
        return head, found

    def answers(output: Path) -> dict[int, str]:
        try:
            found = read_record(output).answers
        except FileNotFoundError:  # not yet
            return {}
        return {answer.index: repr(answer) for answer in found}

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    total, repeated = command(whole).finish(), command(cut)
    saved = [answers(cut) for _ in repeated.kill(total)]
    repeated.finish()
    assert len(saved) in range(ENOUGH, KILLS + 1)
    assert saved[-1], "premise: something was kept"
    for some in saved:
        assert answers(cut) | some == answers(cut), "to the bit"
    (head, expected), (same_head, found) = records(whole), records(cut)
    assert same_head == head
    assert {*found} == {*expected} == {*range(NUM_TEXTS)}
    for n, line in expected.items():
        close(json.loads(found[n]), json.loads(line))


def test_a_long_text(spelled_directory, tmp_path):
    text_file = tmp_path / "text.txt"
    text_file.write_text("Ada saw the fox . " * (12 * PIECE // 5))

    def command(output: Path) -> Command:
        given = ["estimate", str(spelled_directory), "--data", str(text_file)]
        given += ["--num-samples", "20", "--estimator", "smc", "--output", str(output)]
        return Command(latent_eval, given, tmp_path / "log", lambda: words(output))

    def words(output: Path) -> int:
        if output.exists():
            return 12 * PIECE
        found = [0]
        for path in output.parent.glob(f"{output.name}{PIECES}/*.pt"):
            with suppress(FileNotFoundError):  # it is about to be replaced
                found.append(torch.load(path, weights_only=True)["state"][0])
        return max(found)

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    total, repeated = command(whole).finish(), command(cut)
    saved = [words(cut) for _ in repeated.kill(total)]
    assert len(saved) in range(ENOUGH, KILLS + 1)
    assert saved == sorted(saved) and saved[-1] > 0, "what was read stays read"
    repeated.finish()
    [expected], [found] = (read_record(path).answers for path in (whole, cut))
    close(records.row_of(found), records.row_of(expected))
    assert not [*tmp_path.glob(f"*{PIECES}")]


def test_study(spelled_directory, text_file, tmp_path):
    def command(output: Path) -> Command:
        given = [
            "study",
            "--pretrained",
            str(spelled_directory),
            "--data",
            str(text_file),
        ]
        given += ["--num-samples", "20", "--replicate", "4", "--temperatures", "1"]
        given += ["--beam-widths", "3", "--batch-size", "5", "--output", str(output)]
        return Command(latent_eval, given, tmp_path / "log", lambda: len(draws(output)))

    cut, whole = killed(command, tmp_path)
    expected, found = draws(whole), draws(cut)
    assert found.keys() == expected.keys()
    for key, (row, log_w) in expected.items():
        assert found[key][0] == row
        np.testing.assert_allclose(found[key][1], log_w, ROUNDING, ROUNDING)
    # Rows are written with nine digits.
    rows = (read_rows(folder / "rows.jsonl") for folder in (cut, whole))
    for row, expected in zip(*rows, strict=True):
        close(row, expected, rounding=1e-7)


def draws(output: Path) -> dict:
    """Log-weights by setting, text and sentence; none is there twice."""
    try:
        kept = ledger(output).read()[1]
    except FileNotFoundError:  # not yet
        return {}
    return {
        (found.part, found.key): (found.row, np.frombuffer(found.numbers))
        for found in kept
    }


def test_train(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the fox saw Ada .\nAda saw Bo .\nBo saw the fox .\n" * 20)
    data = ["--data", str(path), "--dev", str(path)]

    def command(output: Path) -> Command:
        log = output.with_suffix(".log")
        given = ["train", "lstm", *data, "--output", str(output)]
        given += ["--epochs", "12", "--batch-size", "2", "--dropout", "0.3"]
        given += ["--embedding-dim", "8", "--hidden-size", "9", "--patience", "30"]
        return Command(latent_eval, given, log, lambda: epochs(log))

    def epochs(log: Path) -> int:
        return log.read_text().count("\nepoch ") if log.exists() else 0

    folders = killed(command, tmp_path)
    for name in ("model.safetensors", "spelling.safetensors"):
        found, expected = (load_file(folder / name) for folder in folders)
        assert found.keys() == expected.keys()
        assert all(found[key].equal(expected[key]) for key in expected), name


def test_distort_study(tmp_path):
    text = tmp_path / "text.txt"
    phrases = ["the plum", "a river", "she sold", "his house", "we know", "by day"]
    lines = (f"{phrases[n % 6]} {phrases[n // 6 % 6]} {n}" for n in range(400))
    text.write_text("\n".join(lines) + "\n")

    def command(output: Path) -> Command:
        given = ["distort", "study", "--plan", str(PLAN), "--text", str(text)]
        given += ["--output", str(output), "--jobs", "1", "--device", "cpu"]
        return Command(latent_eval, given, tmp_path / "log", lambda: num_files(output))

    def num_files(output: Path) -> int:
        # Folders come and go meanwhile, which os.walk does not mind.
        return sum(
            Path(name).suffix == ".arrow" or name in ("settings.json", "history.jsonl")
            for folder, _, names in os.walk(output)
            if "fresh" not in Path(folder).parts
            for name in names
        )

    folders = killed(command, tmp_path)
    layouts = [Layout(folder) for folder in folders]
    for learner in Learners(DistortionPlan.read(PLAN)).all:
        for kind in ("test", "text"):
            found, expected = (
                ScoresFolder.open(layout.scores(learner, kind)).columns()
                for layout in layouts
            )
            for name, column in vars(expected).items():
                torch.testing.assert_close(
                    getattr(found, name), column, rtol=1e-6, atol=1e-6
                )
    tables = (folder / "report" / "tables.md" for folder in folders)
    assert len({path.read_text() for path in tables}) == 1


def test_use_cache(spelled_directory, text_file, tmp_path):
    def command(folder: Path) -> Command:
        given = [str(spelled_directory), str(text_file), str(folder)]
        return Command(
            lm_eval, given, tmp_path / "log", lambda: num_bytes(folder, "answers*.db")
        )

    def results(folder: Path) -> dict:
        return json.loads((folder / "results.json").read_text())

    close(*map(results, killed(command, tmp_path)))


QUESTIONS = """
from datasets import Dataset

def questions(**_):
    words = [" ".join("abc"[n // 3**i % 3] for i in range(4)) for n in range({number})]
    return {{"test": Dataset.from_list([
        {{"context": context, "choices": {choices}, "answer": n % 3}}
        for n, context in enumerate(words)
    ])}}
"""
NUM_QUESTIONS = 40


def test_thoughts(tmp_path):
    network = tiny.network()
    network.model.save_pretrained(tmp_path / "network")
    network.tokenizer.save_pretrained(tmp_path / "network")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "tiny_questions.yaml").write_text(TASK)
    functions = QUESTIONS.format(number=NUM_QUESTIONS, choices=CHOICES)
    (tasks / "functions.py").write_text(functions)

    def command(folder: Path) -> Command:
        given = [str(tmp_path / "network"), str(tasks), str(folder)]
        return Command(latent_cot, given, tmp_path / "log", lambda: thought_of(folder))

    def thought_of(folder: Path) -> int:
        try:
            found = read_unfinished([*folder.rglob(f"thoughts_*{UNFINISHED}")])
        except (ValueError, OSError):  # it is about to be written, or gone
            return 0
        return sum(len(file.questions) for file in found)

    def rows(folder: Path) -> list[dict]:
        [path] = folder.rglob("thoughts_*.parquet")
        [file] = thought_files(path)
        return [row_of(kept) for kept in file.questions]

    def scored(folder: Path) -> list[dict]:
        [path] = folder.rglob("record_*.parquet")
        [record] = records.read(path)
        return [records.row_of(answer) for answer in record.answers]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command(whole).finish()
    repeated = command(cut)
    assert len([*repeated.kill(total=NUM_QUESTIONS)]) in range(ENOUGH, KILLS + 1)
    assert thought_of(cut) > 0, "premise: what was thought is kept"
    repeated.finish()
    assert len(rows(whole)) == NUM_QUESTIONS
    for kind in (rows, scored):
        for found, expected in zip(kind(cut), kind(whole), strict=True):
            close(found, expected)
    said = (json.loads((folder / "said.json").read_text()) for folder in (cut, whole))
    close(*said)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_ends_leaves_no_process_behind(tmp_path, number):
    """One that went on writing would meet the study's next run."""
    output, log = tmp_path / "study", tmp_path / "log"
    given = ["distort", "study", "--plan", str(PLAN), "--output", str(output)]
    study = Command(latent_eval, [*given, "--jobs", "1"], log, lambda: 0).start()
    while study.is_alive() and not (output / "text").exists():
        study.join(0.001)
    others = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    assert others, "premise: one is writing the text"
    os.kill(study.pid, number)
    study.join()
    if number == signal.SIGTERM:
        assert study.exitcode == 128 + number
        assert f"finished are kept in {output}" in log.read_text()
    latest = time.monotonic() + 300  # of milliseconds, if all is well
    while any(map(is_running, others)):
        assert time.monotonic() < latest, "still running"
        time.sleep(0.001)


def is_running(pid: str) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False


def close(found, expected, rounding: float = ROUNDING) -> None:
    """Compare what JSON holds; only numbers with a fraction may differ, and little."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"date", "digest"}:  # which rounding changes
            # What a search says of q is float32, and in an exponent. The fit of a
            # tail divides by differences of weights, which may be nearly equal.
            parts = ("stderr", "unseen", "error", "pareto_k")
            loose = any(part in name for part in parts)
            close(found[name], expected[name], IN_EXPONENTS if loose else rounding)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, rounding)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rounding, abs=rounding)
    else:
        assert found == expected
