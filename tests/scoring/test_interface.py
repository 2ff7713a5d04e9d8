"""The Python interface: options, errors, texts without support, the hub."""

from __future__ import annotations

import json
import logging
import math
import pickle
import re

import pyarrow as pa
import pytest

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.report import results
from lm_latent_eval.scoring import opening, workers
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.opening import Opening, scorer_of
from lm_latent_eval.scoring.records import answer_of
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import PADDING, START, UNKNOWN
from tests import tiny_checkpoint
from tests.missing_support import miss
from tests.rounding import agree
from tests.watching import watch

EXACT = {"num_samples": 9, "temperature": 2, "unk": "closed"}
BEAM = {"estimator": "beam", "num_samples": 3}


def test_names_that_are_nearly_right_are_told():
    """Estimators are those that the model takes."""
    checkpoint = load_checkpoint(CHECKPOINT)
    with pytest.raises(ValueError, match=r"did you mean num_samples\?"):
        scorer_of(checkpoint, {"num_sample": 20})
    with pytest.raises(ValueError, match=r"of auto, dpf, is, beam, smc$"):
        scorer_of(checkpoint, {"estimator": "importance"})


def test_upper_bounds_of_continuations_are_told_to_be_none(caplog):
    how = {"bounds": "both", "num_samples": 20}
    scorer = scorer_of(load_checkpoint(CHECKPOINT), how, quiet=True)
    [*scorer.score_texts([Query(0, "text", "She is here.")])]
    assert "bounds" not in caplog.text
    [*scorer.score_continuations([Query(0, "text", " here.", "She is")])]
    assert "bounds: no effect on continuations" in caplog.text


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("lstm", EXACT, ["num_samples, temperature: no effect on likelihoods"]),
        ("lstm", {"unk": "closed"}, []),
        ("lstm", {"estimator": "is", "proposal": "x"}, ["proposal: .*no latents"]),
        ("lstm", BEAM, ["num_samples: .*no latents"]),
        ("kglm", BEAM | {"seed": 1, "temperature": 2}, ["seed: ", "temperature: "]),
        # Which is searched under q, tempered.
        ("kglm", BEAM | {"temperature": 2, "proposal": "peeking"}, []),
        ("kglm", {"estimator": "is", "bounds": "both"}, ["bounds: .*=is has none"]),
        ("kglm", {"bounds": "both"}, []),
        ("kglm", {"batch_size": 2, "max_batch_size": 4}, ["max_batch_size: no effect"]),
        ("kglm", {"batch_size": "auto", "max_batch_size": 4}, []),
    ],
    ids=str,
)
def test_options_that_move_nothing_are_told(
    model, options, said, caplog, lstm_directory
):
    checkpoint = load_checkpoint({"lstm": lstm_directory, "kglm": CHECKPOINT}[model])
    batches = ("batch_size", "max_batch_size")
    how = {name: options[name] for name in batches if name in options}
    options = {name: options[name] for name in options if name not in batches}
    opening._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # and each is told once
            scorer_of(checkpoint, options, quiet=True, **how)
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == len(said)
    for line, wanted in zip(found, said, strict=True):
        assert re.match(wanted, line)


def test_a_directory_without_a_model_is_named_before_its_options(tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        opening.open_model(tmp_path, options={"foo": 1})


# -- what is asked ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(kglm_directory):
    return lm_latent_eval.load(kglm_directory, device="cpu")


def test_equal_contexts_are_read_once(opened, monkeypatch):
    """Their draws are those of the first, whatever follows."""
    read = watch(monkeypatch, Evaluation, "read_contexts", lambda *call: call[-1])
    contexts = ["Ada saw the", "Ada", "Ada saw the", "Ada saw the"]
    texts = [" fox .", " saw", " fox", " fox ."]
    how = {"num_samples": 20, "estimator": "dpf"}
    together = opened.log_likelihood(texts, contexts=contexts, **how)
    [of_both] = [[tuple(text.context) for text in texts] for texts in read]
    assert len(of_both) == len({*of_both}) == 2
    assert together[0] == together[3] != together[2]
    [alone] = opened.log_likelihood(texts[:1], contexts=contexts[:1], **how)
    assert together[0].log_evidence == pytest.approx(alone.log_evidence, rel=1e-12)


def test_what_is_impossible_says_so(opened):
    with pytest.raises(TypeError, match="texts: expected a list of strings"):
        opened.log_likelihood("the fox")
    with pytest.raises(TypeError, match=r"texts\[1\] is None: expected a string"):
        opened.log_likelihood(["the fox", None])
    with pytest.raises(TypeError, match=r"contexts\[0\] is nan: expected a string"):
        opened.log_likelihood([" fox", "Bo"], contexts=[math.nan, "the"])
    with pytest.raises(TypeError, match=r"contexts\[1\] is None: expected a string"):
        opened.generate(["the", None])
    with pytest.raises(ValueError, match="2 texts, but 1 contexts"):
        opened.log_likelihood(["the fox", "Bo"], contexts=["a"])
    with pytest.raises(ValueError, match=r"'max_batch_size' is no .* takes batch_size"):
        opened.log_likelihood(["the fox"], max_batch_size=4)


def test_without_latents_what_cannot_be_is_continued(tmp_path):
    """Nothing is missed where nothing is drawn: the network has read the words."""
    model = tiny_checkpoint.lstm(never_uttered=[PADDING, UNKNOWN, START])
    tiny_checkpoint.write(tmp_path / "lstm", model)
    opened = lm_latent_eval.load(tmp_path / "lstm", device="cpu")
    [text] = opened.generate(["the zebra"], max_tokens=3)
    assert text


def test_iterators_are_read_once(opened):
    """What ends one continuation ends them all."""
    contexts = ["the", "Bo saw"]
    [first, *_] = found = opened.generate(contexts, max_tokens=4)
    assert len(first) > 1, "premise"
    stops = [*dict.fromkeys("".join(found).split())]
    stopped = opened.generate(contexts, max_tokens=4, until=iter(stops))
    assert stopped == opened.generate(contexts, max_tokens=4, until=stops) != found
    assert opened.generate(iter(contexts), max_tokens=4) == found
    texts, how = [" fox", " the"], {"num_samples": 2}
    scored = opened.log_likelihood(texts, contexts=contexts, **how)
    again = opened.log_likelihood(iter(texts), contexts=iter(contexts), **how)
    assert again == scored


def test_the_second_limit_of_what_is_written_has_no_effect(caplog):
    found = GenerationOptions.parse({"max_new_tokens": 9, "max_gen_toks": 3})
    assert found.max_tokens == 3
    assert "generation arguments without effect: max_new_tokens" in caplog.text


# -- texts without support: the others are kept, and the error comes last --------------


TEXTS = ["the fox", "Ada saw the fox .", "a zebra", "Bo saw Ada", "Ada"]
OTHERS = [0, 2, 4]


def test_the_other_texts_keep_their_estimates(opened, monkeypatch):
    """And the error survives workers."""
    whole = opened.log_likelihood(TEXTS, estimator="is", num_samples=9, batch_size=2)
    miss(monkeypatch)
    with pytest.raises(MissedTextsError, match=r"text/1 \('Ada saw.*text/3") as raised:
        opened.log_likelihood(TEXTS, estimator="is", num_samples=9, batch_size=2)
    found = raised.value.answers
    assert [answer.index for answer in found] == OTHERS
    assert agree([answer.estimate for answer in found], [whole[n] for n in OTHERS])
    assert "3 of 5 texts are scored" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.names) == (str(raised.value), raised.value.names)
    assert "Likewise text/3" in str(again)


def test_the_command_keeps_and_shows_the_others(
    kglm_directory, tmp_path, capsys, monkeypatch
):
    miss(monkeypatch)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    output = tmp_path / "out.jsonl"
    command = [
        *("estimate", str(kglm_directory), "--data", str(tmp_path / "texts.txt")),
        *("--output", str(output), "--estimator", "is", "--num-samples", "9"),
    ]
    for _ in range(2):  # the same command goes on, and says the same
        assert main(command) == 2
        said = capsys.readouterr()
        assert "only 3 of 5 texts" in said.out
        assert "text/1 ('Ada saw the fox .')" in said.err
        assert "3 of 5 texts are scored" in said.err
        _, *rows = map(json.loads, output.read_text().splitlines())
        assert sorted(row["document"] for row in rows) == OTHERS
    [record] = results.read(output)
    assert not record.finished


def test_a_worker_keeps_the_others_of_its_block(kglm_directory, monkeypatch):
    miss(monkeypatch)
    options = {"estimator": "is", "num_samples": 9}
    worker = workers._Worker(Opening(str(kglm_directory), options, device="cpu"))
    block = pa.table({"documents": [[*range(5)]], "texts": [TEXTS]})
    answers = [answer_of(json.loads(row)) for row in worker(block)["row"].to_pylist()]
    assert sorted(answer.index for answer in answers) == OTHERS
