"""kill -9 at random moments: repeating the command gives what an unkilled run gives.

Draws and records are the same. Numbers that were not saved before a kill may share
their batches with other texts, which moves float64 sums by parts in 10^12
(``ROUNDING``). ``make crash`` kills twenty times, plain tests twice.
What files survive is in ``test_ledger.py``; that estimates, the pieces of long texts,
studies and trainings go on, with their own tests.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lm_latent_eval.distortion.columns import ScoresFolder
from lm_latent_eval.distortion.study.plan import DistortionPlan, Layout, Learners
from lm_latent_eval.harness.wrappers.cot import UNFINISHED, read_unfinished
from lm_latent_eval.report.thoughts import thought_files
from lm_latent_eval.scoring import records
from lm_latent_eval.wrappers.cot.thoughts import row_of
from tests.conftest import PROJECT
from tests.harness.test_processes import CHOICES, TASK
from tests.killing import ENOUGH, KILLS, Command, latent_cot, latent_eval
from tests.wrappers.cot import tiny

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does"),
]

ROUNDING = 1e-11
IN_EXPONENTS = 1e-4
PLAN = PROJECT / "tests" / "distortion" / "study" / "mini.json"


@pytest.fixture
def killed(tmp_path):
    """Return what runs a command whole, and another time until it is killed at times.

    What it has ``kept`` in its output is counted.
    """

    def run(
        kind: Callable[[list[str]], None],
        arguments: Callable[[Path], list[str]],
        kept: Callable[[Path], int],
    ) -> tuple[Path, Path]:
        whole, cut = tmp_path / "whole", tmp_path / "cut"

        def command(output: Path) -> Command:
            log = output.with_suffix(".log")
            given = [str(part) for part in arguments(output)]
            return Command(kind, given, log, lambda: kept(output))

        total, repeated = command(whole).finish(), command(cut)
        saved = [kept(cut) for _ in repeated.kill(total)]
        assert len(saved) in range(ENOUGH, KILLS + 1)
        assert saved[-1], "premise: something was kept"
        repeated.finish()
        return cut, whole

    return run


def test_distort_study(killed, tmp_path):
    text = tmp_path / "text.txt"
    phrases = ["the plum", "a river", "she sold", "his house", "we know", "by day"]
    lines = (f"{phrases[n % 6]} {phrases[n // 6 % 6]} {n}" for n in range(400))
    text.write_text("\n".join(lines) + "\n")

    def arguments(output: Path) -> list[object]:
        given = ["distort", "study", "--plan", PLAN, "--text", text]
        return [*given, "--output", output, "--jobs", 1, "--device", "cpu"]

    def num_files(output: Path) -> int:
        # Folders come and go meanwhile, which os.walk does not mind.
        return sum(
            Path(name).suffix == ".arrow" or name in ("settings.json", "history.jsonl")
            for folder, _, names in os.walk(output)
            if "fresh" not in Path(folder).parts
            for name in names
        )

    folders = killed(latent_eval, arguments, num_files)
    layouts = [Layout(folder) for folder in folders]
    for learner in Learners(DistortionPlan.read(PLAN)).all:
        for kind in ("test", "text"):
            found, expected = (
                vars(ScoresFolder.open(layout.scores(learner, kind)).columns())
                for layout in layouts
            )
            for name, column in expected.items():
                torch.testing.assert_close(found[name], column, rtol=1e-6, atol=1e-6)
    tables = (folder / "report" / "tables.md" for folder in folders)
    assert len({path.read_text() for path in tables}) == 1


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


def test_thoughts(killed, tmp_path):
    network = tiny.network()
    network.model.save_pretrained(tmp_path / "network")
    network.tokenizer.save_pretrained(tmp_path / "network")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "tiny_questions.yaml").write_text(TASK)
    functions = QUESTIONS.format(number=NUM_QUESTIONS, choices=CHOICES)
    (tasks / "functions.py").write_text(functions)

    def thought_of(folder: Path) -> int:
        if (folder / "said.json").exists():
            return NUM_QUESTIONS
        try:
            found = read_unfinished([*folder.rglob(f"thoughts_*{UNFINISHED}")])
        except (ValueError, OSError):  # it is about to be written, or gone
            return 0
        return sum(len(file.questions) for file in found)

    def results(folder: Path) -> list[list[dict]]:
        [path] = folder.rglob("thoughts_*.parquet")
        [file] = thought_files(path)
        [path] = folder.rglob("record_*.parquet")
        [record] = records.read(path)
        return [
            [row_of(kept) for kept in file.questions],
            [records.row_of(answer) for answer in record.answers],
            [json.loads((folder / "said.json").read_text())],
        ]

    given = tmp_path / "network", tasks
    cut, whole = killed(latent_cot, lambda out: [*given, out], thought_of)
    assert len(results(whole)[0]) == NUM_QUESTIONS
    close(results(cut), results(whole))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_ends_leaves_no_process_behind(tmp_path, number):
    """One that went on writing would meet the study's next run."""
    output, log = tmp_path / "study", tmp_path / "log"
    given = ["distort", "study", "--plan", str(PLAN), "--output", str(output)]
    study = Command(latent_eval, [*given, "--jobs", "1"], log).start()
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
            loose = any(part in str(name) for part in parts)
            close(found[name], expected[name], IN_EXPONENTS if loose else rounding)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, rounding)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rounding, abs=rounding)
    else:
        assert found == expected
