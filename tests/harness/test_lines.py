"""What lm-eval 0.4 and 0.5 ask differently is answered as it is asked, on both."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lm_latent_eval.harness import running, tasks
from lm_latent_eval.harness.answers import score_of
from lm_latent_eval.harness.perplexity import (
    COMPLETION_METRICS,
    METRICS,
    process_half,
    process_text,
)
from lm_latent_eval.harness.tasks import WholeTextTask
from tests.harness.test_contract import paired
from tests.stock_tasks import evaluated
from tests.tiny_checkpoint import rolling

TEXTS = ("Ada saw the fox", "Bo.")


@pytest.mark.parametrize("asked", [rolling, paired])
def test_a_document_gives_every_metric_one_result(backend, asked):
    """A list would be several to 0.5."""
    [answer] = backend(num_samples=5).loglikelihood_rolling(asked(TEXTS[0]))
    terms = process_text({"text": TEXTS[0]}, [answer])
    assert terms.keys() == METRICS.keys()
    assert not [term for term in terms.values() if isinstance(term, list)]
    assert terms["token_perplexity"] == (float(score_of(answer)), 5)
    doc = {"document": 0, "text": TEXTS[0], "part": "whole"}
    halves = process_half(doc, [answer])
    assert halves.keys() == COMPLETION_METRICS.keys()
    assert {half[:2] for half in halves.values()} == {
        ("whole", float(score_of(answer)))
    }


def test_tasks_of_ours_bootstrap_nothing(monkeypatch):
    told = []
    monkeypatch.setattr(
        tasks.RollingTask,
        "aggregate",
        lambda _, iters: told.append(iters),
        raising=False,
    )
    WholeTextTask.aggregate(object.__new__(WholeTextTask), 100_000)
    assert told == [0]


def test_tasks_of_groups_have_the_names_in_their_requests(monkeypatch):
    task = SimpleNamespace(task_name="mine")
    loaded = {"loaded": {"tasks": {"group::mine": task}}}
    monkeypatch.setattr(running, "evaluation", lambda: loaded)
    assert running.running_tasks() == {"mine": task}


def test_padding_is_no_second_answer(backend, monkeypatch):
    lm = backend(num_samples=5)
    asked = rolling(*TEXTS)
    asked[1].repeats = 2
    for instance in asked:
        instance.resps = [-1.0, -2.0, -3.0]
    task = SimpleNamespace(instances=asked)
    module = sys.modules["lm_latent_eval.harness.backend"]
    monkeypatch.setattr(module, "running_tasks", lambda: {"task": task})
    lm.barrier()
    assert [instance.resps for instance in asked] == [[-1.0], [-1.0, -2.0]]


REPEATED = {
    "task": "repeated",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "said.jsonl"}},
    "output_type": "generate_until",
    "test_split": "test",
    "doc_to_text": "{{text}}",
    "doc_to_target": "{{text}}",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "do_sample": True},
    "repeats": 6,
    "metric_list": [{"metric": "exact_match"}],
}


def test_repeats_are_draws_of_their_own(backend, stock_data):
    Path("said.jsonl").write_text('{"text": "Ada saw"}\n{"text": "Ada saw"}\n')
    Path("repeated.yaml").write_text(yaml.safe_dump(REPEATED))

    def drawn():
        found = evaluated(backend(num_samples=5), ["repeated"], ".")
        return [sample["resps"][0] for sample in found["samples"]["repeated"]]

    first, second = drawn()
    assert len(first) == len(second) == 6
    assert len({*first}) > 1 and first != second
    assert drawn() == [first, second], "by their names"
