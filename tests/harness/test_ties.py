"""Questions whose options differ by rounding alone are ties in every batch."""

from __future__ import annotations

from dataclasses import replace

import lm_eval
import pytest
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.report import results
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.numbers import numbers
from tests.harness.test_processes import TASK

# The model knows neither zebra nor yak, and an unknown word is a class of its own.
FUNCTIONS = """
from datasets import Dataset

def questions(**_):
    pairs = [[" the zebra", " the yak"], [" the fox", " zebra fox zebra"]] * 2
    return {"test": Dataset.from_list([
        {"context": "Ada saw", "choices": pair, "answer": i // 2}
        for i, pair in enumerate(pairs)
    ])}
"""


@pytest.fixture
def run(tiny, tmp_path):
    (tmp_path / "tiny_questions.yaml").write_text(TASK)
    (tmp_path / "functions.py").write_text(FUNCTIONS)

    def evaluate(nats):
        """Add so many to the first option's score."""
        lm = LatentKGLM(pretrained=tiny, num_samples=9, unk="closed")
        score = lm._scorer.score_continuations

        def rounded(queries):
            for answer in score(queries):
                more = nats * (1 - answer.index % 2)
                moved = answer.estimate.log_evidence + more
                estimate = replace(answer.estimate, log_evidence=moved)
                yield replace(answer, estimate=estimate)

        lm._scorer.score_continuations = rounded
        output = tmp_path / f"out{nats}"
        found = lm_eval.simple_evaluate(
            model=lm,
            model_args="pretrained=tiny",
            tasks=["tiny_questions"],
            task_manager=TaskManager(
                include_path=str(tmp_path), include_defaults=False
            ),
            bootstrap_iters=0,
            evaluation_tracker=tracker(output),
        )
        return found, output

    def tracker(output):
        return EvaluationTracker(output_path=str(output))

    return evaluate


@pytest.mark.parametrize("nats", [1e-13, -1e-13, -1e-6])
def test_rounding_decides_nothing(run, nats):
    found, output = run(nats)
    said = found["config"]["latent_eval"]
    assert (said["questions"], said["questions_tied"]) == (4, 2)
    assert found["results"]["tiny_questions"]["acc,none"] == 0.5, "either way"
    [path] = output.rglob("record_*.parquet")
    [record] = results.read(path)
    tied = [answer.tied for answer in record.answers]
    assert tied == [True, True, False, False] * 2
    accuracies = [answer.accuracy for answer in record.answers[::2]]
    assert accuracies == [0.5, 1.0, 0.5, 0.0]
    assert numbers(record)["questions_tied"].value == 2
    assert "questions_tied = 2" in explain(path)


def test_a_difference_that_is_one_decides(run):
    found, _ = run(-1e-3)
    assert found["config"]["latent_eval"]["questions_tied"] == 0
