"""Thoughts of a run that is killed, and of a run in several processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import lm_eval
import pytest
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_latent_eval.cli import main
from lm_latent_eval.harness.wrappers.cot import UNFINISHED, LatentCoT
from lm_latent_eval.report.thoughts import thought_files
from lm_latent_eval.wrappers.cot.thinking import Thinker
from tests.environment import HANGS, of_worker
from tests.harness.test_processes import ACCELERATE, TASK
from tests.wrappers.cot import tiny

QUESTIONS = ["a b", "c", "b b c a", "a c", "c c c", "b", "a a", "c b a"]
CHOICES = [" a", " b c", " c"]
OPTIONS = {
    **tiny.MARKS,
    **{"hint": tiny.HINT, "proposal": "hinted", "close": "forced"},
    **{"max_think_tokens": 4, "num_samples": 20, "batch_size": 1, "device": "cpu"},
}
FUNCTIONS = f"""
from datasets import Dataset

def questions(**_):
    return {{"test": Dataset.from_list([
        {{"context": context, "choices": {CHOICES}, "answer": n % 3}}
        for n, context in enumerate({QUESTIONS})
    ])}}
"""
WORKER = """
import json, os, pathlib, signal, sys
import torch
from lm_latent_eval.harness.answers import GuardedHook
from tests.harness.test_cot_processes import run

torch.set_num_threads(1)
directory, tasks, out, cache, deadly = sys.argv[1:]
left, add_partial = [int(deadly)], GuardedHook.add_partial

def killing(*answer):
    add_partial(*answer)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

GuardedHook.add_partial = killing
said = run(directory, tasks, out, cache=cache or None)
if said:
    pathlib.Path(out, "said.json").write_text(json.dumps(said))
"""
DEADLY = 3 * len(CHOICES) + 1
"""The answer that kills: the first of the fourth question's."""


def run(directory, tasks, out, *, cache=None):
    """Answer the questions; return what results say of accuracy and thoughts."""
    results = lm_eval.simple_evaluate(
        model=LatentCoT(pretrained=str(directory), **OPTIONS),
        model_args="pretrained=tiny",
        tasks=["tiny_questions"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        use_cache=cache and str(cache),
        evaluation_tracker=EvaluationTracker(output_path=str(out)),
    )
    if results is None:  # a process that is not the first
        return None
    said = dict(results["config"]["latent_eval"]["thoughts"])
    del said["files"]
    return {"acc": results["results"]["tiny_questions"]["acc,none"], **said}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder, network = tmp_path_factory.mktemp("tiny"), tiny.network()
    network.model.save_pretrained(folder)
    network.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "questions.yaml").write_text(TASK)
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "worker.py").write_text(WORKER)
    return folder


@pytest.fixture(scope="module")
def whole(directory, tasks, tmp_path_factory):
    """A run in one process, to its end: what it says, and its thoughts."""
    out = tmp_path_factory.mktemp("whole")
    said = run(directory, tasks, out)
    return said, thoughts(out)


@pytest.fixture
def work(directory, tasks, tmp_path):
    """Return a function that runs in processes of its own."""

    def start(out, launch=(), cache="", deadly=0):
        arguments = (tasks / "worker.py", directory, tasks, out, cache, deadly)
        return subprocess.run(
            [sys.executable, *launch, *map(str, arguments)],
            cwd=tmp_path,
            env=of_worker(),
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )

    return start


def thoughts(out):
    """Return log-weights by question and answer, of a finished run."""
    [path] = out.rglob("thoughts_*.parquet")
    assert not [*out.rglob(f"*{UNFINISHED}")], "they are removed at the end"
    [file] = thought_files(path)
    return numbers(file)


def numbers(file):
    return {
        (question.document, answer): (drawn, log_w, right)
        for question in file.questions
        for answer, log_w, right in zip(
            question.thoughts.answers,
            question.thoughts.log_weights.tolist(),
            question.right,
            strict=True,
        )
        for drawn in [question.thoughts.drawn]
    }


def assert_same(found, expected):
    """The same thoughts; rounding depends on who shares a batch with whom."""
    for place, (drawn, log_w, right) in found.items():
        assert (drawn, right) == (expected[place][0], expected[place][2])
        assert log_w == pytest.approx(expected[place][1], rel=1e-9)


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_a_killed_run_leaves_its_thoughts(
    work, whole, directory, tasks, tmp_path, capsys, monkeypatch
):
    out, cache = tmp_path / "out", tmp_path / "cache"
    done = work(out, cache=cache, deadly=DEADLY)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    # Whatever was answered has its thoughts; commands read them.
    [file] = thought_files(out)
    assert len(file.questions) == 4 and not file.finished
    said, expected = whole
    assert_same(numbers(file), expected)
    main(["thoughts", str(out)])
    assert "4 questions, 20 thoughts each, latent_cot, not finished" in (
        capsys.readouterr().out
    )
    shutil.copytree(out, tmp_path / "alone")
    # With its cache or without, the same command thinks about the others alone.
    drawn, draw = [], Thinker.draw

    def counting(thinker, questions, *numbers):
        drawn.extend(question.key for question in questions)
        return draw(thinker, questions, *numbers)

    monkeypatch.setattr(Thinker, "draw", counting)
    for folder, kept in ((out, cache), (tmp_path / "alone", None)):
        drawn.clear()
        assert run(directory, tasks, folder, cache=kept) == said
        assert len(drawn) == len({*drawn}) == len(QUESTIONS) - 4
        found = thoughts(folder)
        assert found.keys() == expected.keys()
        assert_same(found, expected)


@pytest.mark.nightly
def test_two_processes_think_as_one(work, whole, tmp_path):
    out = tmp_path / "out"
    done = work(out, ACCELERATE)
    assert done.returncode == 0, done.stderr[-3000:]
    said, expected = whole
    assert json.loads((out / "said.json").read_text()) == said
    found = thoughts(out)
    assert found.keys() == expected.keys()
    assert_same(found, expected)
