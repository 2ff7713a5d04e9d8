"""Every run that writes results leaves a record of each task beside them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import pytest
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.contrastive import DISTORTION
from lm_latent_eval.harness.records import _answers
from lm_latent_eval.harness.tasks import request, whole_text
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.metrics import METRICS
from tests.conftest import PROJECT
from tests.harness.test_processes import FUNCTIONS, TASK
from tests.tiny_checkpoint import rolling

TEXTS = "Ada saw the fox\nthe fox saw Bo.\na zebra\n"
TASKS = ["latent_perplexity", "tiny_questions"]


@pytest.fixture
def run(tiny_spelled, tmp_path):
    """Return a function that runs both tasks, or some, and returns the results."""
    (tmp_path / "text.txt").write_text(TEXTS)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny_questions.yaml").write_text(TASK)
    (tmp_path / "tasks" / "functions.py").write_text(FUNCTIONS)

    def evaluate(
        output, use_cache=None, before=lambda lm: None, tasks=TASKS, **settings
    ):
        lm = LatentKGLM(pretrained=tiny_spelled, num_samples=20, **settings)
        before(lm)
        manager = TaskManager(
            include_path=[str(PROJECT / "tasks"), str(tmp_path / "tasks")],
            include_defaults=False,
            metadata={"text_file": str(tmp_path / "text.txt")},
        )
        return lm_eval.simple_evaluate(
            model=lm,
            model_args="pretrained=tiny",
            tasks=tasks,
            task_manager=manager,
            bootstrap_iters=0,
            use_cache=use_cache,
            evaluation_tracker=EvaluationTracker(output_path=output)
            if output
            else None,
        )

    return evaluate


def written(results, folder):
    names = results["config"]["latent_eval"]["records"]
    return {task: records.read(Path(folder) / name)[0] for task, name in names.items()}


def test_a_record_gives_the_results_again(run, tmp_path):
    results = run(str(tmp_path / "out"), log_weights="true")
    found = written(results, tmp_path / "out" / "tiny")
    assert sorted(found) == TASKS
    texts = found["latent_perplexity"]
    for name, metric in METRICS.items():
        assert results["results"]["latent_perplexity"][f"{name},none"] == metric(
            texts.answers
        )
    assert [answer.index for answer in texts.answers] == [0, 1, 2]
    assert texts.settings["seed"] == 0
    assert texts.settings["checkpoint"] == results["config"]["checkpoint_digest"]
    questions = found["tiny_questions"].answers
    assert [(answer.index, answer.option) for answer in questions] == [
        (document, option) for document in range(5) for option in range(3)
    ]
    accuracy = sum(answer.accuracy for answer in questions) / 15
    assert accuracy == results["results"]["tiny_questions"]["acc,none"]
    samples = results["samples"]["latent_perplexity"]
    assert json.loads(json.dumps(samples))[0]["word_perplexity"][1] == 4


def test_answers_from_a_cache_are_in_the_record_too(run, tmp_path):
    first = run(str(tmp_path / "a"), use_cache=str(tmp_path / "cache"))
    again = run(str(tmp_path / "b"), use_cache=str(tmp_path / "cache"))
    assert again["config"]["latent_eval"]["requests"] == 0, "premise"
    found = written(again, tmp_path / "b" / "tiny")
    assert found == written(first, tmp_path / "a" / "tiny")
    assert not found["latent_perplexity"].answers[0].estimate.log_weights, (
        "nobody asked"
    )


def test_a_killed_run_leaves_its_answers(run, tmp_path):
    class KilledError(Exception):
        pass

    def kill_at_questions(lm):
        def killed(_):
            raise KilledError

        lm._scorer.score_continuations = killed

    folder = tmp_path / "out" / "tiny"
    with pytest.raises(KilledError):
        run(str(tmp_path / "out"), before=kill_at_questions)
    [left] = [
        record
        for path in folder.glob(f"*texts*{records.UNFINISHED}")
        for record in records.read(path)
    ]
    assert (left.task, len(left.answers), left.finished) == (TASKS[0], 3, False)
    [path] = folder.glob(f"*texts*{records.UNFINISHED}")
    run(str(tmp_path / "out"), tasks=TASKS[1:])
    assert path.exists(), "the run of another task leaves it alone"
    run(str(tmp_path / "out"))
    assert not list(folder.glob(f"*{records.UNFINISHED}")), "the same run, finished"


@pytest.mark.parametrize("tasks", [TASKS, TASKS[1:]], ids=["same", "other"])
def test_a_second_run_does_not_stop_the_first(run, tmp_path, caplog, tasks):
    """It gets as far as the questions while the first one is answering them."""
    out, folder, second = str(tmp_path / "out"), tmp_path / "out" / "tiny", []

    def meet_at_the_first_question(lm):
        score = lm._scorer.score_continuations

        def met(queries):
            for number, answer in enumerate(score(queries)):
                yield answer
                if number == 0:
                    second.append(run(out, tasks=TASKS))
                    assert [*folder.glob(f"*continuations*{records.UNFINISHED}")]

        lm._scorer.score_continuations = met

    first = run(out, before=meet_at_the_first_question, tasks=tasks)
    assert not list(folder.glob(f"*{records.UNFINISHED}"))
    assert caplog.text.count("another run is writing into") == (tasks == TASKS)
    found, expected = written(first, folder), written(second[0], folder)
    assert found == {task: expected[task] for task in tasks}


def test_distorted_copies_are_no_corpus(backend):
    [score] = backend(num_samples=5).loglikelihood_rolling(rolling("the fox"))

    def answers(doc):
        asked = ("loglikelihood_rolling", whole_text("the fox"), doc, 0, ("t", 0, 1))
        instance = request(*asked)
        instance.resps = [score]
        task = SimpleNamespace(
            instances=[instance], process_results=lambda doc, answers: {}
        )
        return [*_answers(task)]

    [answer] = answers({"text": "the fox"})
    assert (answer.words, answer.estimate.log_evidence) == (2, float(score))
    assert answers({"text": "the fox", DISTORTION: 0.1}) == []


def test_without_an_output_nothing_is_written(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "tasks")
    assert run(None)["config"]["latent_eval"]["records"] == {}
    assert {p.name for p in (tmp_path / "tasks").iterdir()} >= {"functions.py"}
    assert not list(tmp_path.rglob("record_*"))
