"""kill -9 at random moments: repeating the command gives what an unkilled run gives.

``make crash`` kills twenty times, plain tests twice. What files survive is in
``test_ledger.py``; that estimates, thoughts and trainings go
on, with their own tests.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from lm_latent_eval.distortion.columns import ScoresFolder
from lm_latent_eval.distortion.study.plan import DistortionPlan, Layout, Learners
from tests.conftest import PROJECT
from tests.killing import ENOUGH, KILLS, Command

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does"),
]

PLAN = PROJECT / "tests" / "distortion" / "study" / "mini.json"


def test_distort_study(tmp_path):
    text = tmp_path / "text.txt"
    phrases = ["the plum", "a river", "she sold", "his house", "we know", "by day"]
    lines = (f"{phrases[n % 6]} {phrases[n // 6 % 6]} {n}" for n in range(400))
    text.write_text("\n".join(lines) + "\n")

    def command(output: Path) -> Command:
        given = ["distort", "study", "--plan", PLAN, "--text", text, "--output", output]
        given = [*map(str, given), "--jobs", "1", "--device", "cpu"]
        return Command(given, output.with_suffix(".log"), lambda: num_files(output))

    def num_files(output: Path) -> int:
        # Folders come and go meanwhile, which os.walk does not mind.
        return sum(
            Path(name).suffix == ".arrow" or name in ("settings.json", "history.jsonl")
            for _, _, names in os.walk(output)
            for name in names
        )

    folders = cut, whole = tmp_path / "cut", tmp_path / "whole"
    total, repeated = command(whole).finish(), command(cut)
    saved = [num_files(cut) for _ in repeated.kill(total)]
    assert len(saved) in range(ENOUGH, KILLS + 1)
    assert saved[-1], "premise: something was kept"
    repeated.finish()
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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_ends_leaves_no_process_behind(tmp_path, number):
    """One that went on writing would meet the study's next run."""
    output, log = tmp_path / "study", tmp_path / "log"
    given = ["distort", "study", "--plan", str(PLAN), "--output", str(output)]
    study = Command([*given, "--jobs", "1"], log).start()
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
