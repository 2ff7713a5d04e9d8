"""lm-eval's own tasks and options, unchanged, on local files.

What three tasks report is worked out by listing every latent of the tiny model, while a
beam that holds them all answers the harness. Of the others, whichever line of
lm-eval is installed, accuracies are what their logged log-likelihoods say. Options do
what they say, and no more.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import datasets
import lm_eval
import pytest
import yaml
from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.answers import CacheMismatchError
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.inference import DiscreteFilter
from lm_latent_eval.scoring import likelihoods
from lm_latent_eval.scoring.texts import Query
from tests.conftest import PROJECT
from tests.stock_tasks import (
    PAGES,
    PAIRS,
    PASSAGES,
    SPLITS,
    STOCK,
    TASKS,
    approximately,
    assert_the_scorer_says_so_alone,
    log_likelihoods,
    tasks,
)
from tests.tiny_checkpoint import Truth, ids

EVERY_WALK = 17_000
"""A beam of this width holds every walk over six tokens."""

pytestmark = pytest.mark.usefixtures("stock_data")


@pytest.fixture(scope="module")
def truth(model):
    return Truth(model)


@pytest.fixture
def exact(tiny, stock_data):
    """Results of the three tasks where nothing is estimated."""
    lm = LatentKGLM(pretrained=tiny, estimator="beam", num_samples=EVERY_WALK)
    return lm_eval.simple_evaluate(
        model=lm, tasks=TASKS, task_manager=tasks(), bootstrap_iters=0
    )["results"]


def test_the_stock_tasks_report_what_enumeration_says(exact, truth):
    log_p = [truth.log_p(ids(*words.split(), "END")) for _, words, *_ in PAGES]
    num_words = sum(n for *_, n, _ in PAGES)
    num_bytes = sum(n for *_, n in PAGES)
    found = exact["wikitext"]
    assert found["word_perplexity,none"] == pytest.approx(
        math.exp(-sum(log_p) / num_words), rel=1e-10
    )
    assert found["byte_perplexity,none"] == pytest.approx(
        math.exp(-sum(log_p) / num_bytes), rel=1e-10
    )
    assert found["bits_per_byte,none"] == pytest.approx(
        -sum(log_p) / num_bytes / math.log(2), rel=1e-10
    )

    log_p, hits = [], []
    for passage in PASSAGES:
        *context, last = ("?" if w in ("a", "zebra") else w for w in passage.split())
        log_p.append(truth.log_p(ids(*context, last)) - truth.log_p(ids(*context)))
        hits.append(ids(last) == [truth.most_probable(ids(*context))])
    assert 0 < sum(hits) < len(hits), "premise"
    found = exact["lambada_openai"]
    assert found["perplexity,none"] == pytest.approx(
        math.exp(-sum(log_p) / len(log_p)), rel=1e-10
    )
    assert found["acc,none"] == sum(hits) / len(hits)

    preferred = []
    for pair in PAIRS:
        words = (ids(*sentence.replace(".", " .").split()) for sentence in pair)
        good, bad = map(truth.log_p, words)
        preferred.append(good > bad)
    assert 0 < sum(preferred) < len(preferred), "premise"
    assert exact["blimp_adjunct_island"]["acc,none"] == sum(preferred) / len(PAIRS)


def test_every_estimate_is_the_scorers_alone(evaluate_stock, backend):
    results = evaluate_stock()
    ours = backend(estimator="auto", num_samples=12)._scorer
    assert_the_scorer_says_so_alone(results, ours, 1e-12)
    found = log_likelihoods(results)
    greedy = [found["lambada_openai", i][0][1] for i in range(len(PASSAGES))]
    assert 0 < sum(greedy) < len(greedy), "premise"
    (page,) = ours.score_texts([Query(0, "wikitext/0", "Ada saw the fox. \n")])
    expected = [page.estimate.log_evidence]
    assert found["wikitext", 0] == pytest.approx(expected, rel=1e-12)


def test_text_whose_words_are_lost_is_refused_by_name_or_warned_of(
    tiny_spelled, caplog
):

    def run(unk):
        return lm_eval.simple_evaluate(
            model=LatentKGLM(pretrained=tiny_spelled, num_samples=5, unk=unk),
            tasks=["wikitext"],
            task_manager=tasks(),
            bootstrap_iters=0,
        )

    assert run("spelled")["config"]["latent_eval"]["bytes_are_scored"] is True
    assert "mean nothing" not in caplog.text

    pages = [{"page": "the <unk> saw Ada . \n"}]
    write_dataset(
        "EleutherAI/wikitext_document_level",
        {"wikitext-2-raw-v1": dict.fromkeys(SPLITS, pages)},
    )
    with pytest.raises(ValueError, match=r"wikitext/0 .*1 literal <unk>.*unk=penal"):
        run("spelled")
    results = run("penalized")
    assert "bits per byte and byte perplexities of these texts mean nothing" in (
        caplog.text
    )
    assert results["results"]["wikitext"]["word_perplexity,none"] > 1
    assert results["config"]["latent_eval"]["bytes_are_scored"] is False


def test_a_split_without_rows_is_an_error():
    with pytest.raises(ValueError, match="nyu-mll/blimp: split 'train' of 'x' has no"):
        write_dataset("nyu-mll/blimp", {"x": {"train": []}})


def test_rewritten_data_are_read_anew(tmp_path, monkeypatch):
    """In the same directory and in another one: neither gives what was cached."""
    for place, text in (("a", "one"), ("a", "two"), ("b", "three")):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        write_dataset("some/data", {"x": {"test": [{"text": text}]}})
        read = datasets.load_dataset("some/data", "x")["test"]
        assert read.to_list() == [{"text": text}]


BLIMP = (
    "adjunct_island",
    "anaphor_gender_agreement",
    "anaphor_number_agreement",
    "animate_subject_passive",
    "determiner_noun_agreement_1",
    "distractor_agreement_relational_noun",
    "irregular_past_participle_verbs",
    "npi_present_1",
    "principle_A_c_command",
    "regular_plural_subject_verb_agreement_1",
    "sentential_negation_npi_scope",
    "wh_vs_that_no_gap",
)
LETTERS = ["A", "B", "C", "D"]
ENDINGS = ["Ada", "the fox", "Bo .", "saw the fox"]


def choices(right: int) -> dict[str, object]:
    """Choices as ARC has them."""
    return {
        "choices": {"text": ENDINGS, "label": LETTERS},
        "answerKey": LETTERS[right],
    }


ROWS = {
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy"),
    "boolq": ("aps/super_glue", "boolq"),
    "gsm8k": ("openai/gsm8k", "main"),
    "hellaswag": ("Rowan/hellaswag", "default"),
    "lambada_standard": ("cimec/lambada", "default"),
    "winogrande": ("allenai/winogrande", "winogrande_xl"),
}
"""Task -> its data set, and which part of it."""
FOLDERS = ("arc", "gsm8k", "hellaswag", "winogrande", "super_glue/boolq")


def row(task: str, n: int) -> dict[str, object]:
    """Make the n-th row of a task's data; its answers differ."""
    seen = ["the fox", "Ada", "the saw"][n]
    rows: dict[str, dict[str, object]] = {
        "arc_easy": {"question": f"Who saw {seen}", **choices(n)},
        "boolq": {"passage": f"Bo saw {seen}", "question": "saw Bo", "label": n % 2},
        "gsm8k": {"question": f"How many saw {seen}", "answer": f"Ada #### {n}"},
        "hellaswag": {
            "ctx_a": f"Ada saw {seen}.",
            "ctx_b": "bo",
            "activity_label": "fox",
            "endings": ENDINGS,
            "label": str(n),
        },
        "lambada_standard": {"text": PASSAGES[n]},
        "winogrande": {
            "sentence": f"Ada saw {seen} and _ saw the fox",
            "option1": "Ada",
            "option2": "the Bo",
            "answer": str(1 + n % 2),
        },
    }
    return rows[task]


@pytest.fixture
def results(tiny, stock_data):
    pairs = [{"sentence_good": good, "sentence_bad": bad} for good, bad in PAIRS]
    for name in ("nyu-mll/blimp", "blimp"):  # on 0.4, and on 0.5
        write_dataset(name, {part: {"train": pairs} for part in BLIMP})
    of_set: dict[str, dict[str, dict[str, object]]] = {}
    for task, (name, part) in ROWS.items():
        rows = [row(task, n) for n in range(3)]
        splits = ("train", "validation", "test")
        of_set.setdefault(name, {})[part] = dict.fromkeys(splits, rows)
    for name, parts in of_set.items():
        write_dataset(name, parts)
    folders = [*FOLDERS, "wikitext", "lambada", "blimp"]
    manager = TaskManager(
        include_path=[str(STOCK / folder) for folder in folders],
        include_defaults=False,
    )
    return lm_eval.simple_evaluate(
        model=LatentKGLM(pretrained=tiny, num_samples=6),
        tasks=[*{*TASKS, *ROWS, *(f"blimp_{part}" for part in BLIMP)}],
        task_manager=manager,
        num_fewshot=2,
        limit=3,
        gen_kwargs={"max_gen_toks": 4},
        bootstrap_iters=0,
    )


def target(sample: dict) -> int:
    """The number of the right choice; some tasks of 0.4 log its text."""
    said = str(sample["target"])
    return int(said) if said.isdigit() else sample["doc_id"] % 2


def test_twenty_task_files_say_what_their_answers_say(results):
    found, answers = results["results"], log_likelihoods(results)
    assert len(found) == 20
    assert 0 < sum("acc,none" in values for values in found.values()) == 18
    for task, values in found.items():
        samples = results["samples"][task]
        if results["configs"][task]["output_type"] == "multiple_choice":
            right = [
                max(range(len(told)), key=[log_p for log_p, _ in told].__getitem__)
                == target(sample)
                for sample in samples
                for told in [answers[task, sample["doc_id"]]]
            ]
            assert len(right) == 3
            assert values["acc,none"] == pytest.approx(sum(right) / 3), task
    log_p = [answers["lambada_standard", n][0] for n in range(3)]
    assert found["lambada_standard"]["perplexity,none"] == pytest.approx(
        math.exp(-sum(score for score, _ in log_p) / 3)
    )
    assert found["lambada_standard"]["acc,none"] == sum(g for _, g in log_p) / 3
    pages = [answers["wikitext", n][0] for n in range(3)]
    assert found["wikitext"]["bits_per_byte,none"] == pytest.approx(
        -sum(pages) / (19 + 9 + 12) / math.log(2)
    )
    for sample in results["samples"]["gsm8k"]:
        [[written]] = sample["resps"]
        assert isinstance(written, str)
    assert found["gsm8k"]["exact_match,strict-match"] == 0, "no number is a word of it"


ROLLING = "loglikelihood_rolling"


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
