"""What lm-eval 0.4 and 0.5 ask differently is answered as it is asked, on both."""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import numpy as np
import pytest
import yaml
from lm_eval.api.model import CachingLM
from lm_eval.tasks import TaskManager
from scipy import stats

from lm_latent_eval.harness import running, tasks
from lm_latent_eval.harness.answers import ScoredFloat, score_of
from lm_latent_eval.harness.perplexity import (
    COMPLETION_METRICS,
    METRICS,
    process_half,
    process_text,
)
from lm_latent_eval.harness.tasks import WholeTextTask, request, whole_text
from tests.tiny_checkpoint import COPIED, UTTERED, Truth, generation, ids, rolling

TEXTS = ("Ada saw the fox", "Bo.")


def paired(*texts: str):
    """Whole texts as lm-eval 0.5 asks for them."""
    return [
        request("loglikelihood_rolling", ("", text), {}, 0, ("task", n, 1))
        for n, text in enumerate(texts)
    ]


def test_whole_texts_are_answered_as_they_are_asked(backend):
    numbers = backend(num_samples=5).loglikelihood_rolling(rolling(*TEXTS))
    pairs = backend(num_samples=5).loglikelihood_rolling(paired(*TEXTS))
    assert all(isinstance(number, ScoredFloat) for number in numbers)
    assert [greedy for _, greedy in pairs] == [False, False]
    found = [float(number) for number, _ in pairs]
    assert found == pytest.approx([float(number) for number in numbers], rel=1e-12)
    for number, pair in zip(numbers, pairs, strict=True):
        assert score_of(pair).answer.text == number.answer.text
        assert score_of(pair).answer.is_greedy is number.answer.is_greedy is None


def test_a_cache_answers_in_pairs_as_well(backend, tmp_path):
    asked = paired(*TEXTS)

    def answers(lm):
        return CachingLM(lm, str(tmp_path / "answers.db")).loglikelihood_rolling(asked)

    first, silent = answers(backend(num_samples=5)), backend(num_samples=5)
    silent.loglikelihood_rolling = None
    assert answers(silent) == first
    assert [greedy for _, greedy in first] == [False, False]


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


def test_tasks_of_ours_ask_as_those_of_lm_eval(monkeypatch):
    for base in (tasks.ConfigurableTask, object):
        monkeypatch.setattr(tasks, "RollingTask", base)
        expected = ("a b",) if base is tasks.ConfigurableTask else ("", "a b")
        assert whole_text("a b") == expected
    made = request("loglikelihood_rolling", ("", "a"), {"x": 1}, 2, ("task", 7, 3))
    assert (made.args, made.doc, made.idx) == (("", "a"), {"x": 1}, 2)
    assert (made.task_name, made.doc_id, made.repeats) == ("task", 7, 3)


def test_nothing_of_ours_is_bootstrapped(monkeypatch):
    told = []
    monkeypatch.setattr(
        tasks.RollingTask,
        "aggregate",
        lambda _, iters: told.append(iters),
        raising=False,
    )
    WholeTextTask.aggregate(object.__new__(WholeTextTask), 100_000)
    assert told == [0]


@dataclass
class Asked:
    """A request, as far as scorers look at it."""

    doc: dict
    doc_id: int = 0
    resps: list = field(default_factory=list)
    filtered_resps: dict = field(default_factory=dict)


class Scorer:
    """As 0.5 has them: filters, then says of documents what the first answer was."""

    def apply_filter(self, instances):
        for instance in instances:
            instance.filtered_resps["none"] = instance.resps

    def score_instances(self, documents):
        return {
            number: SimpleNamespace(
                scores={"acc": [max(i.filtered_resps["none"][0][0] for i in asked)]}
            )
            for number, asked in documents.items()
        }


def test_what_a_task_says_is_asked_of_it_or_of_its_scorers():
    instances = [Asked({"x": 1}, doc_id=4), Asked({"x": 1}, doc_id=4)]
    answers = [(-2.0, False), (-1.0, True)]
    itself = SimpleNamespace(process_results=lambda doc, found: {"acc": len(found)})
    assert running.said(itself, instances, answers) == {"acc": 2}
    by_scorers = SimpleNamespace(process_results=lambda *_: None, scorers=[Scorer()])
    assert running.said(by_scorers, instances, answers) == {"acc": -1.0}
    assert not [i for i in instances if i.resps or i.filtered_resps], "only supposed"


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


def test_repeats_are_draws_of_their_own(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    Path("said.jsonl").write_text('{"text": "Ada saw"}\n{"text": "Ada saw"}\n')
    Path("repeated.yaml").write_text(yaml.safe_dump(REPEATED))

    def drawn():
        found = lm_eval.simple_evaluate(
            model=backend(num_samples=5),
            tasks=["repeated"],
            task_manager=TaskManager(include_path=".", include_defaults=False),
            bootstrap_iters=0,
        )
        return [sample["resps"][0] for sample in found["samples"]["repeated"]]

    first, second = drawn()
    assert len(first) == len(second) == 6
    assert len({*first}) > 1 and first != second
    assert drawn() == [first, second], "by their names"


def test_the_spread_over_repeats_is_what_the_error_predicts(backend):
    """Repeats of a request are independent estimates; their variance, a chi-square."""
    [asked] = rolling("Ada saw the fox . the fox saw Bo")
    asked.repeats = 300
    answers = backend(num_samples=60).loglikelihood_rolling([asked] * asked.repeats)
    found = np.array([float(answer) for answer in answers])
    errors = np.array([answer.estimate.draws_stderr for answer in answers])
    assert 0.01 < errors.mean() < 0.1, "premise: log p-hat is nearly normal"
    ratio = ((found - found.mean()) ** 2).sum() / (errors**2).mean()
    low, high = stats.chi2.interval(1 - 1e-4, asked.repeats - 1)
    # Errors are estimates, too, and weights have heavier tails than normal ones.
    assert low / 1.2 < ratio < high * 1.2


def test_repeats_of_written_words_are_independent_draws(backend, model):
    """Counts of a word in R repeats of N documents are binomial, given enumeration."""
    documents, repeats = 30, 20
    lm = backend(estimator="beam", num_samples=200, batch_size=64)
    asked = generation(*["the"] * documents, max_gen_toks=1, do_sample=True)
    for instance in asked:
        instance.repeats = repeats
    words = lm.generate_until([one for one in asked for _ in range(repeats)])
    counts = np.array([w.strip() == "fox" for w in words]).reshape(documents, repeats)
    truth = Truth(model, penalized=False)
    log_p = {
        word: truth.log_p(ids("the", word), only_copied=True)
        for word in ("END", *UTTERED, *COPIED)
    }
    p = math.exp(log_p["fox"]) / sum(map(math.exp, log_p.values()))
    assert 0.1 < p < 0.9, "premise"
    assert stats.binomtest(int(counts.sum()), counts.size, p).pvalue > 1e-4
    # Repeats that shared their draws would spread R times as much over documents.
    deviations = (counts.sum(1) - repeats * p) / math.sqrt(repeats * p * (1 - p))
    assert 1e-4 < stats.chi2.cdf((deviations**2).sum(), documents) < 1 - 1e-4


@pytest.mark.skipif(
    "repeats" not in inspect.signature(lm_eval.simple_evaluate).parameters,
    reason="lm-eval 0.4 has no --repeats",
)
def test_errors_over_repeats_are_printed_by_lm_eval(backend, tmp_path, monkeypatch):
    """Of N documents alike, each of R repeats: sqrt(p (1 - p) / (N R))."""
    documents, repeats = 40, 10
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    Path("said.jsonl").write_text('{"text": "the"}\n' * documents)
    written = {"until": ["."], "max_gen_toks": 1, "do_sample": True}
    metric = {"metric": "exact_match", "reduction": "pass@k"}  # pass@1 is their mean
    task = {**REPEATED, "doc_to_target": " fox", "generation_kwargs": written}
    del task["repeats"]
    Path("repeated.yaml").write_text(yaml.safe_dump(task | {"metric_list": [metric]}))
    found = lm_eval.simple_evaluate(
        model=backend(num_samples=5),
        tasks=["repeated"],
        task_manager=TaskManager(include_path=".", include_defaults=False),
        repeats=repeats,
        log_samples=True,
    )
    [values] = found["results"].values()
    [samples] = found["samples"].values()
    each = np.array([s["scores_per_repeat"]["exact_match"] for s in samples])
    assert each.shape == (documents, repeats)
    p = values["pass@1(exact_match),none"]
    assert p == pytest.approx(each.mean()) and 0 < p < 1
    predicted = math.sqrt(p * (1 - p) / each.size)
    ratio = (documents - 1) * (
        values["pass@1(exact_match)_stderr,none"] / predicted
    ) ** 2
    low, high = stats.chi2.interval(1 - 1e-4, documents - 1)
    assert low < ratio < high
