"""The harness's own options on its own tasks: they do what they say and no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import metric_registry

from lm_latent_eval.harness.answers import CacheMismatchError
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.inference import DiscreteFilter
from lm_latent_eval.scoring import likelihoods
from lm_latent_eval.scoring.texts import Query
from tests.conftest import PROJECT
from tests.stock_tasks import TASKS, approximately, log_likelihoods, tasks

ROLLING = "loglikelihood_rolling"

pytestmark = pytest.mark.usefixtures("stock_data")


def test_limit_chooses_documents_and_moves_no_number(evaluate_stock):
    whole, limited = evaluate_stock(), evaluate_stock(limit=2)
    assert {n["effective"] for n in limited["n-samples"].values()} == {2}
    some, every = log_likelihoods(limited), log_likelihoods(whole)
    assert some.keys() == {(name, i) for name in TASKS for i in (0, 1)}
    for key, numbers in some.items():
        assert approximately(numbers) == every[key]


QUESTIONS = [
    {"question": "the fox saw", "choices": ["Ada", "Bo", "the fox", "."], "answer": 0},
    {"question": "Ada saw", "choices": ["the fox", "Ada", "saw", "Bo"], "answer": 3},
    {"question": "Bo", "choices": ["saw Bo", "the", "saw", "Ada"], "answer": 2},
]
SHOTS = [{"question": "the", "choices": ["fox", "the"], "answer": 0}]
QUESTION_TASK = {
    "task": "who_saw",
    "dataset_path": "local/who_saw",
    "output_type": "multiple_choice",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "fewshot_delimiter": " . ",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


@pytest.fixture
def questions():
    """Return the folder of a multiple-choice task with examples to show."""
    write_dataset("local/who_saw", {"default": {"train": SHOTS, "test": QUESTIONS}})
    folder = Path("my_tasks")
    folder.mkdir()
    (folder / "who_saw.yaml").write_text(yaml.safe_dump(QUESTION_TASK))
    return str(folder.absolute())


@pytest.mark.parametrize(("num_fewshot", "shown"), [(0, ""), (1, "the fox . ")])
def test_num_fewshot_puts_examples_before_the_question(
    evaluate_stock, backend, questions, num_fewshot, shown
):
    results = evaluate_stock(
        names=["who_saw"], include_path=questions, num_fewshot=num_fewshot
    )
    ours = backend(estimator="auto", num_samples=12)._scorer
    right = 0
    found = log_likelihoods(results)
    for i, doc in enumerate(QUESTIONS):
        context = shown + doc["question"]
        answers = ours.score_continuations(
            [
                Query(n, f"who_saw/{i}", f" {choice}", context)
                for n, choice in enumerate(doc["choices"])
            ]
        )
        expected = {a.index: a.estimate.log_evidence for a in answers}
        numbers = [number for number, _ in found["who_saw", i]]
        assert numbers == pytest.approx([expected[n] for n in range(4)], rel=1e-12)
        right += max(expected, key=lambda n: expected[n]) == doc["answer"]
    assert results["results"]["who_saw"]["acc,none"] == right / len(QUESTIONS)
    assert results["n-shot"]["who_saw"] == num_fewshot


def test_a_context_is_read_once_for_all_options(evaluate_stock, questions, monkeypatch):
    read, predicted = [], []
    read_contexts = likelihoods.read_contexts
    most_probable = likelihoods.Continuations._most_probable

    def counting_contexts(setting, method, texts):
        read.append(len(texts))
        return read_contexts(setting, method, texts)

    def counting_predictions(self, last, *after):
        predicted.append(len(last))
        return most_probable(self, last, *after)

    # Where none asks for more than the others.
    monkeypatch.setattr(DiscreteFilter, "pays", lambda *_: False)
    monkeypatch.setattr(likelihoods, "read_contexts", counting_contexts)
    monkeypatch.setattr(
        likelihoods.Continuations, "_most_probable", counting_predictions
    )
    evaluate_stock(names=["who_saw"], include_path=questions)
    assert (read, predicted[0]) == ([len(QUESTIONS)], len(QUESTIONS))
    read.clear(), predicted.clear()
    evaluate_stock(names=["blimp_adjunct_island"])
    assert (read, predicted[0]) == ([1], 1), "the empty context is one for all"


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_use_cache_answers_the_same_and_refuses_other_settings(
    evaluate_stock, tmp_path, monkeypatch
):
    cache = str(tmp_path / "answers")
    plain, filled = evaluate_stock(), evaluate_stock(use_cache=cache)
    with monkeypatch.context() as patch:
        for name in ("score_texts", "score_continuations"):
            patch.setattr(
                f"lm_latent_eval.scoring.scorer.Scorer.{name}",
                lambda *_: pytest.fail("not from the cache"),
            )
        cached = evaluate_stock(use_cache=cache)
    assert plain["results"] == filled["results"] == cached["results"]
    assert log_likelihoods(plain) == log_likelihoods(cached)
    with pytest.raises(CacheMismatchError, match="num_samples is 12 there and 13 here"):
        evaluate_stock(num_samples=13, use_cache=cache)


def test_cache_requests_moves_no_number(evaluate_stock, tmp_path):
    plain = evaluate_stock()
    written = evaluate_stock(cache_requests=True)
    assert len(list((tmp_path / "requests").iterdir())) == len(TASKS), "premise"
    read = evaluate_stock(cache_requests=True)
    assert plain["results"] == written["results"] == read["results"]
    assert log_likelihoods(plain) == log_likelihoods(read)


# -- the command ---------------------------------------------------------------------


@pytest.fixture
def lm_eval_command(monkeypatch, tmp_path):
    """Return a function that runs ``lm_eval`` in process and reads what it wrote."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", tasks)

    def run(*arguments):
        out = tmp_path / "out"
        command = ["lm_eval", *arguments, "--output_path", str(out)]
        monkeypatch.setattr(sys, "argv", command)
        parser = HarnessCLI()
        parser.execute(parser.parse_args())
        (results,) = out.rglob("results_*.json")
        samples = {
            path.name.removeprefix("samples_").rpartition("_")[0]: [
                json.loads(line) for line in path.read_text().splitlines()
            ]
            for path in out.rglob("samples_*.jsonl")
        }
        return json.loads(results.read_text()), samples

    return run


def test_log_samples_writes_the_log_likelihoods(lm_eval_command, evaluate_stock, tiny):
    model = ("--model", "latent_kglm", "--model_args", f"pretrained={tiny}")
    _, samples = lm_eval_command(
        *model, "num_samples=12", "--tasks", ",".join(TASKS), "--log_samples"
    )
    expected = log_likelihoods(evaluate_stock())
    assert samples.keys() == set(TASKS)
    for (name, i), numbers in expected.items():
        (sample,) = (s for s in samples[name] if s["doc_id"] == i)
        written = [first_number(resp[0]) for resp in sample["resps"]]
        wanted = [first_number(answer) for answer in numbers]
        assert written == pytest.approx(wanted, rel=1e-12)


def first_number(answer):
    """A log-likelihood, alone or with its flag, as a number or as lm-eval writes it."""
    return float(answer[0] if isinstance(answer, (list, tuple)) else answer)


def test_predict_only_writes_samples_and_no_metrics(lm_eval_command, tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Ada saw the fox\n")
    names = [*TASKS, "latent_perplexity"]
    # What stands for a metric there takes no whole texts on 0.5, whosever task it is.
    takes = getattr(metric_registry.get("bypass"), "output_type", {ROLLING})
    if ROLLING not in takes:
        names = [name for name in TASKS if name != "wikitext"]
    results, samples = lm_eval_command(
        *("--model", "latent_kglm", "--model_args", f"pretrained={tiny}"),
        *("--tasks", ",".join(names), "--include_path", str(PROJECT / "tasks")),
        *("--metadata", json.dumps({"text_file": str(text)}), "--predict_only"),
    )
    assert samples.keys() == set(names)
    for name in names:
        assert results["results"][name].keys() <= {
            *("alias", "name", "sample_len", "sample_count"),
            *("bypass,none", "bypass_stderr,none"),
        }
        for sample in samples[name]:
            assert all(first_number(resp[0]) < 0 for resp in sample["resps"])


def test_a_config_file_says_it_all(lm_eval_command, evaluate_stock, tiny, tmp_path):
    """Numbers come as numbers, absent ones as null, and not as strings."""
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model": "latent_kglm",
                "model_args": {
                    "pretrained": tiny,
                    "num_samples": 12,
                    "temperature": 1,
                    "seed": 0,
                    "target_stderr": None,
                    "max_samples": 1e5,
                    "dtype": "float64",
                },
                "tasks": TASKS,
                "batch_size": 2,
                "limit": 3,
                "trust_remote_code": True,
            }
        )
    )
    results, _ = lm_eval_command("--config", str(config))
    expected = evaluate_stock(limit=3)
    for name in TASKS:
        for metric, value in expected["results"][name].items():
            if "stderr" not in metric and not isinstance(value, str):
                assert results["results"][name][metric] == pytest.approx(
                    value, rel=1e-12
                ), metric
    said = results["config"]["latent_eval"]
    assert (said["num_samples"], said["max_samples"]) == (12, 100_000)
    assert (said["temperature"], said["target_stderr"]) == (1.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_samples", True), ("temperature", True), ("num_samples", 1.5), ("seed", [1])],
)
def test_values_that_a_yaml_file_can_get_wrong(tiny, name, value):
    with pytest.raises(ValueError, match=f"{name}=.*expected a"):
        LatentKGLM(pretrained=tiny, **{name: value})
