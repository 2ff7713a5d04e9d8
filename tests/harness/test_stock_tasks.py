"""lm-eval's own tasks, unchanged, on local files.

What they report is worked out by listing every latent of the tiny model, while a beam
that holds them all answers the harness.
"""

from __future__ import annotations

import math

import datasets
import lm_eval
import pytest

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.scoring.texts import Query
from tests.stock_tasks import (
    PAGES,
    PAIRS,
    PASSAGES,
    SPLITS,
    TASKS,
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
    """With few samples: the task's name and the document's number choose the draws."""
    found = log_likelihoods(evaluate_stock())
    ours = backend(estimator="auto", num_samples=12)._scorer

    def alone(name, text, context):
        (answer,) = ours.score_continuations([Query(0, name, text, context)])
        return pytest.approx(answer.estimate.log_evidence, rel=1e-12), answer.is_greedy

    for i, passage in enumerate(PASSAGES):
        context, _, last = passage.rpartition(" ")
        name = f"lambada_openai/{i}"
        assert [alone(name, f" {last}", context)] == found["lambada_openai", i]
    greedy = [found["lambada_openai", i][0][1] for i in range(len(PASSAGES))]
    assert 0 < sum(greedy) < len(greedy), "premise"
    for i, pair in enumerate(PAIRS):
        name = f"blimp_adjunct_island/{i}"
        expected = [alone(name, f" {sentence}", "")[0] for sentence in pair]
        assert expected == [a for a, _ in found["blimp_adjunct_island", i]]
    (page,) = ours.score_texts([Query(0, "wikitext/0", "Ada saw the fox. \n")])
    assert found["wikitext", 0] == pytest.approx(
        [page.estimate.log_evidence], rel=1e-12
    )


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
