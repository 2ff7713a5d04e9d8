"""lm-eval's own tasks and options, unchanged, on local files.

What three tasks report is worked out by listing every latent of the tiny model, while a
beam that holds them all answers the harness. Options do what they say, and no
more.
"""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import yaml

from lm_latent_eval.harness import running
from lm_latent_eval.harness.tasks import write_dataset
from tests.stock_tasks import (
    PAGES,
    PAIRS,
    PASSAGES,
    TASKS,
    assert_the_scorer_says_so_alone,
    evaluated,
    log_likelihoods,
    write_pages,
)
from tests.tiny_checkpoint import ids, rolling

pytestmark = pytest.mark.usefixtures("stock_data")


def test_the_stock_tasks_report_what_enumeration_says(exact, truth):
    results = evaluated(exact)["results"]

    log_p = [truth.log_p(ids(*words.split(), "END")) for _, words, *_ in PAGES]
    num_words = sum(n for *_, n, _ in PAGES)
    found, expected = results["wikitext"], math.exp(-sum(log_p) / num_words)
    assert found["word_perplexity,none"] == pytest.approx(expected, rel=1e-10)
    # Unknown words are one class here: strings were not scored.
    scored = exact.loglikelihood_rolling(rolling(*(page for page, *_ in PAGES)))
    unknown = sum(score.answer.unspelled for score in scored)
    assert unknown, "premise"
    for name in ("byte_perplexity", "bits_per_byte"):
        assert found[f"{name},none"] == f"refused: {unknown} words not spelled"

    log_p, hits = [], []
    for passage in PASSAGES:
        *context, last = ("?" if w in ("a", "zebra") else w for w in passage.split())
        log_p.append(truth.log_p(ids(*context, last)) - truth.log_p(ids(*context)))
        hits.append(ids(last) == [truth.most_probable(ids(*context))])
    assert 0 < sum(hits) < len(hits), "premise"
    found, perplexity = results["lambada_openai"], math.exp(-sum(log_p) / len(log_p))
    assert found["perplexity,none"] == pytest.approx(perplexity, rel=1e-10)
    assert found["acc,none"] == sum(hits) / len(hits)

    preferred = []
    for pair in PAIRS:
        words = (ids(*sentence.replace(".", " .").split()) for sentence in pair)
        good, bad = map(truth.log_p, words)
        preferred.append(good > bad)
    assert 0 < sum(preferred) < len(preferred), "premise"
    assert results["blimp_adjunct_island"]["acc,none"] == sum(preferred) / len(PAIRS)


def test_text_whose_words_are_lost_is_refused_by_name_or_has_no_rate_per_byte(
    backend, spelled_directory
):
    write_pages(["the <unk> saw Ada . \n"])

    def run(unk):
        lm = backend(pretrained=spelled_directory, num_samples=5, unk=unk)
        return evaluated(lm, ["wikitext"])

    with pytest.raises(ValueError, match=r"wikitext/0 .*1 literal <unk>.*unk=penal"):
        run("spelled")
    results = run("penalized")
    rates = results["results"]["wikitext"]
    assert rates["bits_per_byte,none"] == "refused: 2 words not spelled"
    assert rates["byte_perplexity,none"] == "refused: 2 words not spelled"
    assert rates["word_perplexity,none"] > 1
    assert results["config"]["latent_eval"]["bytes_are_scored"] is False


def test_limits_and_cached_requests_move_no_number(backend, tmp_path):
    def lm():
        return backend(estimator="is", num_samples=12)

    whole, limited = evaluated(lm(), cache_requests=True), evaluated(lm(), limit=2)
    assert_the_scorer_says_so_alone(whole, lm()._scorer, 1e-12)
    assert len(list((tmp_path / "requests").iterdir())) == len(TASKS), "premise"
    assert evaluated(lm(), cache_requests=True)["results"] == whole["results"]
    assert {n["effective"] for n in limited["n-samples"].values()} == {2}
    some, every = log_likelihoods(limited), log_likelihoods(whole)
    assert some.keys() == {(name, i) for name in TASKS for i in (0, 1)}
    for key, numbers in some.items():
        for found, expected in zip(numbers, every[key], strict=True):
            assert found == pytest.approx(expected, rel=1e-12)
    assert not list(tmp_path.rglob("record_*")), "nobody has asked for an output"


def test_data_are_written_and_read_anew(tmp_path, monkeypatch):
    """In the same directory and in another one: neither gives what was cached."""
    for place, text in (("a", "one"), ("a", "two"), ("b", "three")):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        write_dataset("some/data", {"x": {"test": [{"text": text}]}})
        read = datasets.load_dataset("some/data", "x")["test"]
        assert read.to_list() == [{"text": text}]
    with pytest.raises(ValueError, match="nyu-mll/blimp: split 'train' of 'x' has no"):
        write_dataset("nyu-mll/blimp", {"x": {"train": []}})


# -- repeats, and copies that pad -----------------------------------------------------


def test_tasks_of_groups_have_the_names_in_their_requests(monkeypatch):
    task = SimpleNamespace(task_name="mine")
    loaded = {"loaded": {"tasks": {"group::mine": task}}}
    monkeypatch.setattr(running, "evaluation", lambda: loaded)
    assert running.running_tasks() == {"mine": task}


def test_padding_is_no_second_answer(backend, monkeypatch):
    lm = backend(num_samples=5)
    asked = rolling("Ada saw the fox", "Bo.")
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


def test_repeats_are_draws_of_their_own(backend):
    Path("said.jsonl").write_text('{"text": "Ada saw"}\n{"text": "Ada saw"}\n')
    Path("repeated.yaml").write_text(yaml.safe_dump(REPEATED))

    def drawn():
        found = evaluated(backend(num_samples=5), ["repeated"], ".")
        return [sample["resps"][0] for sample in found["samples"]["repeated"]]

    first, second = drawn()
    assert len(first) == len(second) == 6
    assert len({*first}) > 1 and first != second
    assert drawn() == [first, second], "by their names"
