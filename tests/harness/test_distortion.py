"""Errors on an artificial language as lm-eval tells them, against the exact ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import make_table

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.statistics import ErrorCurve
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.harness.answers import ScoredFloat, score_of
from lm_latent_eval.harness.backends import LatentKGLM, LatentLSTM
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests import tiny_checkpoint
from tests.conftest import PROJECT
from tests.distortion.tiny import gpt2
from tests.stock_tasks import Told, evaluated, tasks

GROUP = "distributional_distortion"
TASK = f"{GROUP}_corpus"
BINS = [f"error_bin_{number:02}" for number in range(1, 11)]
ROUNDING = 1e-12
"""Of sums of a few float64 log-probabilities, relative."""


def causal(spread: float = 0.0) -> CausalLanguage:
    """A language of two words, or a model of it with random errors, in float64."""
    model = gpt2()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            noise = torch.randn(weights.shape, generator=generator)
            weights += spread * noise
    return CausalLanguage(model, 1.0, 0, 1, word_tokenizer(["a", "b"]))


def fox() -> PCFG:
    """Sentences in the words of the tiny checkpoints, ``</s>`` after each."""
    rules = {
        "S": {"N V": 0.6, "N V S": 0.4},
        "N": {"the fox": 0.7, "fox": 0.3},
        "V": {"saw": 0.8, "saw N": 0.2},
    }
    words = ["the", "fox", "saw"]
    return PCFG({"kind": "pcfg", "start": "S", "words": words, "rules": rules})


def draw(language: Any, folder: Path, num_sequences: int, max_length: int) -> Corpus:
    return Corpus.draw(
        language, folder, num_sequences, max_length=max_length, quiet=True
    )


def save(language: CausalLanguage, folder: Path) -> str:
    """Write a model with its tokenizer, as a training leaves it."""
    language.model.save_pretrained(folder)
    language.tokenizer.save_pretrained(folder)
    return str(folder)


INCLUDE = str(PROJECT / "tasks" / GROUP)


def load(corpus: Any, **metadata: Any) -> Any:
    """Load the task as lm-eval does."""
    directory = str(corpus.directory) if isinstance(corpus, Corpus) else corpus
    manager = tasks(INCLUDE, metadata={"corpus": directory, **metadata})
    return manager.load([TASK])["tasks"][TASK]


def evaluate(
    lm: LM, corpus: Corpus, metadata: dict[str, Any] | None = None, **options: Any
) -> Any:
    about = {"corpus": str(corpus.directory), **(metadata or {})}
    return evaluated(lm, [GROUP], INCLUDE, metadata=about, **options)


def errors(found: dict[str, Any]) -> dict[int, float]:
    """The error of each sequence, by its number."""
    return {s["doc"]["index"]: s["mean_error"] for s in found["samples"][TASK]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sequences of a GPT-2: empty ones, cut ones, and with the begin token inside."""
    found = draw(causal(), tmp_path_factory.mktemp("corpus"), 300, max_length=8)
    rows = found.dataset()
    ids = [tuple(each) for each in rows["ids"]]
    assert (1,) in ids and not all(rows["ended"]), "premise"
    assert any(each[0] == 0 for each in ids), "premise"
    assert len({*ids}) > 50, "premise"
    return found


@pytest.fixture(scope="module")
def grammar(tmp_path_factory):
    """Sequences of a grammar, some of them cut."""
    found = draw(fox(), tmp_path_factory.mktemp("corpus"), 50, max_length=9)
    assert 0 < sum(found.dataset()["ended"]) < 50, "premise"
    return found


def texts_of(corpus: Corpus) -> list[str]:
    tokenizer = corpus.tokenizer()
    return [tokenizer.decode(ids) for ids in corpus.dataset()["ids"]]


def columns(corpus: Corpus):
    rows = corpus.dataset()
    log_p = torch.tensor(rows["log_p"][:], dtype=torch.float64)
    return rows["index"][:], rows["ids"][:], log_p


# -- models that read the end as a token -----------------------------------------------


def test_errors_of_a_model_and_their_curve(corpus, tmp_path):
    other = causal(spread=0.05)
    lm = HFLM(save(other, tmp_path), dtype="float64", device="cpu", batch_size=7)
    found = evaluate(lm, corpus)
    index, ids, true_log_p = columns(corpus)
    model_log_p = other.log_p(ids)
    error = model_log_p - true_log_p
    assert 0.1 < (error < 0).double().mean() < 0.9, "premise"
    assert errors(found) == pytest.approx(
        dict(zip(index, error.tolist(), strict=True)), abs=30 * ROUNDING
    )
    numbers, repeated = found["results"][TASK], found["groups"][GROUP]
    for name in ("left_out", "share_ruled_out", "estimator_bias"):
        assert numbers[f"{name},none"] == 0
    curve = ErrorCurve.of(
        true_log_p, model_log_p, bins="count", num_bins=10, resamples=1
    )
    expected = {
        "mean_error": (error, curve.mean_error),
        "share_underestimated": ((error < 0).double(), curve.share_underestimated),
    }
    order = true_log_p.argsort(stable=True)
    for name, part, each in zip(
        BINS, error[order].tensor_split(10), curve.bins.itertuples(), strict=True
    ):
        expected[name] = part, each.mean_error
    for name, (values, mean) in expected.items():
        stderr = values.std().item() / math.sqrt(len(values))
        for row in (numbers,) if name in BINS[1:-1] else (numbers, repeated):
            assert row[f"{name},none"] == pytest.approx(mean, abs=1e-10)
            assert row[f"{name}_stderr,none"] == pytest.approx(stderr, abs=1e-10)
    said = found["configs"][TASK]["metadata"]["distortion"]
    assert said["corpus"] == corpus.settings
    for told, each in zip(said["bins"], curve.bins.itertuples(), strict=True):
        assert told["count"] == each.count
        assert told["lowest_true_log_p"] == each.lowest
        assert told["highest_true_log_p"] == each.highest
        assert told["mean_true_log_p"] == pytest.approx(each.mean_true_log_p)
    table = make_table(found)
    assert all(table.count(name) == 1 for name in BINS[1:-1])
    assert "_stderr" not in table


# -- models of whole texts -------------------------------------------------------------


def test_a_model_of_whole_texts_counts_the_end_itself(grammar, corpus, lstm_directory):
    lm = LatentLSTM(pretrained=lstm_directory)
    found = evaluate(lm, grammar, metadata={"end": "implied"})
    index, ids, true_log_p = columns(grammar)
    model, expected = tiny_checkpoint.lstm(), {}
    numbers = [START, *tiny_checkpoint.ids("END", "the", "fox", "saw")]
    for number, each, truth in zip(index, ids, true_log_p.tolist(), strict=True):
        if each[-1] != 1:  # cut
            continue
        words = [numbers[i] for i in each]
        batch = TokenBatch.collate([words], [[0.0] * len(words)], first=START)
        [log_p] = model.log_joint(model.encode(batch), NO_LATENT).flatten().tolist()
        expected[number] = log_p - truth
    assert errors(found) == pytest.approx(expected, abs=1e-9)
    assert found["results"][TASK]["estimator_bias,none"] == 0
    assert found["results"][TASK]["left_out,none"] == 50 - len(expected) > 0
    with pytest.raises(ValueError, match=r'sequence 0 .*add "end": "implied"'):
        evaluate(lm, grammar)
    with pytest.raises(ValueError, match="words that the model does not know"):
        evaluate(lm, corpus, metadata={"end": "implied"})


def test_the_share_of_an_estimator_is_told_apart(grammar, kglm_directory):
    lm = LatentKGLM(pretrained=kglm_directory, estimator="is", num_samples=40)
    found = evaluate(lm, grammar, metadata={"end": "implied"})
    index, _, true_log_p = columns(grammar)
    truth = dict(zip(index, true_log_p.tolist(), strict=True))
    variances = []
    for sample in found["samples"][TASK]:
        scored = score_of(sample["resps"][0][0])
        variances.append(scored.estimate.draws_stderr**2)
        assert sample["estimator_bias"] == -variances[-1] / 2
        error = float(scored) - truth[sample["doc"]["index"]]
        assert sample["mean_error"] == pytest.approx(error, abs=ROUNDING)
    assert len(variances) == sum(grammar.dataset()["ended"])
    numbers, mean = found["results"][TASK], sum(variances) / len(variances)
    assert numbers["estimator_bias,none"] == pytest.approx(-mean / 2)
    assert numbers["estimator_bias,none"] < 0, "premise"


# -- what lm-eval's own options do -----------------------------------------------------


def test_a_limit_makes_bins_of_what_is_asked(corpus, caplog):
    _, ids, true_log_p = columns(corpus)
    model_log_p = torch.tensor([-len(each) / 2 for each in ids]).double()
    known = dict(zip(texts_of(corpus), model_log_p.tolist(), strict=True))
    told = Told(known.__getitem__)
    found = evaluate(told, corpus, limit=40)
    curve = ErrorCurve.of(
        true_log_p[:40], model_log_p[:40], bins="count", num_bins=10, resamples=1
    )
    numbers = found["results"][TASK]
    for name, each in zip(BINS, curve.bins.itertuples(), strict=True):
        assert numbers[f"{name},none"] == pytest.approx(each.mean_error)
    assert found["n-samples"][TASK] == {"original": 300, "effective": 40}
    few = evaluate(told, corpus, limit=9)["results"][TASK]
    mean = (model_log_p - true_log_p)[:9].mean().item()
    assert few["mean_error,none"] == pytest.approx(mean)
    assert not [name for name in few if "bin" in name]
    assert "9 sequences cannot fill 10 bins" in caplog.text
    task = load(corpus)
    task.build_all_requests(samples=[7, 250, *range(20, 30)])
    asked = [instance.doc["index"] for instance in task.instances]
    assert asked == [7, *range(20, 30), 250]
    assert task.bin_of.keys() == set(asked)


def test_shares_of_processes_know_the_bins_of_the_whole(corpus):
    task = load(corpus)
    task.build_all_requests()
    whole, bins = {i.doc_id: i.args for i in task.instances}, task.bin_of
    names = task.aggregation().keys()
    shares = {}
    for rank in range(2):
        task.build_all_requests(rank=rank, world_size=2)
        shares |= {i.doc_id: i.args for i in task.instances}
        assert task.bin_of == bins
        for number, doc in task.doc_iterator(rank=rank, world_size=2):
            told = task.process_results(doc, [(-1.0, False)])
            # What a process does not name, lm-eval cannot gather.
            assert told.keys() == names, number
    assert shares == whole


def test_an_estimate_may_be_above_one_and_nothing_else(corpus):
    task = load(corpus, end="implied")
    task.build_all_requests(samples=[7])
    doc = task.instances[0].doc
    exact = Estimate.exact(0.002, num_tokens=3)
    drawn = Answer(0, replace(exact, draws_stderr=0.01))
    told = task.process_results(doc, [ScoredFloat(drawn)])
    assert told["mean_error"] == 0.002 - doc["true_log_p"]
    said = rf"sequence {doc['index']} .*of (0\.002|inf|nan) nats; expected at most 0"
    others = ((log_p, False) for log_p in (0.002, math.inf, math.nan))
    for score in (ScoredFloat(Answer(0, exact)), *others):
        with pytest.raises(ValueError, match=said):
            task.process_results(doc, [score])


# -- texts that stand for other sequences ----------------------------------------------


def test_only_what_is_read_back_is_asked_for_and_the_rest_is_counted(tmp_path, caplog):
    """A word that is two others between white space is read as those."""
    words = word_tokenizer(["a", "b", "a b"])
    language = CausalLanguage(gpt2(vocab_size=5), 1.0, 0, 1, words)
    spelled = draw(language, tmp_path, 200, max_length=5)
    tokenizer, rows = spelled.tokenizer(), spelled.dataset()
    texts = texts_of(spelled)
    kept = {
        i: text
        for i, ids, text in zip(rows["index"], rows["ids"], texts, strict=True)
        if tokenizer.encode(text, add_special_tokens=False) == ids
    }
    assert 40 < len(kept) < 190, "premise"
    assert "".join(kept.values()).count("</s>") > 10, "premise"
    found = evaluate(Told(lambda _: -1.0), spelled)
    truth = dict(zip(rows["index"], rows["log_p"], strict=True))
    assert errors(found) == {i: -1.0 - truth[i] for i in kept}
    assert [s["arguments"] for s in found["samples"][TASK]] == [
        [("<s>", text)] for text in kept.values()
    ]
    lost = 200 - len(kept)
    assert found["results"][TASK]["left_out,none"] == lost
    assert found["configs"][TASK]["metadata"]["distortion"]["left_out"] == lost
    assert f"{lost} of 200 sequences of" in caplog.text


# -- log-probabilities of zero, and other answers --------------------------------------


def test_what_a_model_rules_out_makes_means_infinite_and_is_counted(grammar):
    _, _, true_log_p = columns(grammar)
    places = (true_log_p == true_log_p.min()).nonzero().flatten().tolist()
    text = texts_of(grammar)[places[0]]
    assert len(places) < 5, "premise: in one bin"
    found = evaluate(Told(lambda one: -math.inf if one == text else -5.0), grammar)
    numbers = found["results"][TASK]
    share = len(places) / 50
    assert numbers["share_ruled_out,none"] == pytest.approx(share)
    assert numbers["share_ruled_out_stderr,none"] == pytest.approx(
        math.sqrt(share * (1 - share) / 49)
    )
    for row in numbers, found["groups"][GROUP]:
        for name in "mean_error", "error_bin_01":
            assert row[f"{name},none"] == "minus infinity"
            assert row[f"{name}_stderr,none"] == "N/A"
    assert all(math.isfinite(numbers[f"{name},none"]) for name in BINS[1:])
    assert make_table(found).count("minus infinity") == 4
    json.dumps(found["results"])


def test_what_is_asked_the_wrong_way_is_refused(grammar, tmp_path, caplog, stock_data):
    with pytest.raises(ValueError, match="no examples, no system instruction"):
        evaluate(Told(lambda _: -5.0), grammar, system_instruction="Say it.")
    # Requests are never taken from a cache.
    other = draw(fox(), tmp_path / "other", 20, max_length=3)
    for each in (grammar, other):
        found = evaluate(Told(lambda _: -5.0), each, cache_requests=True)
        asked = found["samples"][TASK][0]["arguments"]
        assert asked == [("<s>", texts_of(each)[0])]
    assert "requests are not cached" in caplog.text
    for metadata, message in (
        ({"corpus": ""}, "needs the folder of a corpus"),
        ({"corpus": "nowhere"}, "no corpus is there"),
        ({"end": "</s>"}, "expected one of written, implied"),
    ):
        settings = {"corpus": str(grammar.directory)} | metadata
        with pytest.raises(ValueError, match=message):
            load(settings.pop("corpus"), **settings)
