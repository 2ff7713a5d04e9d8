"""``lm-latent-eval tune``: what it writes, what it leaves, what it refuses."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lm_latent_eval import manifest
from lm_latent_eval.cli import main
from lm_latent_eval.estimators import Bound
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.tuning import FILE_NAME, Tuned
from lm_latent_eval.scoring import tuning
from lm_latent_eval.scoring.files import read_record, score_file
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.tuning import tune
from lm_latent_eval.text.words import END
from lm_latent_eval.training.options import FitBudget
from lm_latent_eval.training.supervised import only_trainer
from tests import tiny_checkpoint

TEXTS = ["the fox saw Ada.", "Bo saw the fox.", "Ada saw Bo.", "the fox saw the fox."]
BUDGET = FitBudget(num_samples=30, rounds=2)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A checkpoint whose ``smoothing`` sees a mention wherever a name could begin."""
    model = tiny_checkpoint.kglm()
    model.proposals["smoothing"].matching.weight.fill_(6.0)
    return tiny_checkpoint.write(
        tmp_path_factory.mktemp("tune") / "model", model, tiny_checkpoint.orthography()
    )


@pytest.fixture
def checkpoint(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix in (".json", ".safetensors")
    }


def tuned(checkpoint: Path, **options):
    return tune(checkpoint, TEXTS, proposal="smoothing", budget=BUDGET, **options)


def test_it_writes_the_choice_and_the_curve_and_nothing_else(checkpoint):
    before = files(checkpoint)
    now, name, found = tuned(checkpoint)
    after = files(checkpoint)
    assert name == "smoothing"
    assert found.better
    assert found.gain > 2 * found.stderr > 0
    assert {n for n in after if after[n] != before.get(n)} == {
        FILE_NAME,
        manifest.FILE_NAME,
    }
    assert manifest.verify(checkpoint) == now.digest
    record = json.loads(after[FILE_NAME])["proposals"]["smoothing"]
    assert record["strengths"] == found.strengths
    assert len(record["texts"]) == len(TEXTS)
    assert len(record["history"]["curve"]) == BUDGET.rounds + 1
    assert load_checkpoint(checkpoint).model.strengths("smoothing") == found.strengths


def test_it_is_a_function_of_its_input(checkpoint, original, tmp_path):
    other = shutil.copytree(original, tmp_path / "other")
    tuned(checkpoint)
    tuned(other)
    assert files(checkpoint) == files(other)


def test_tuning_again_begins_where_the_last_one_ended(checkpoint):
    _, _, first = tuned(checkpoint)
    _, _, second = tune(
        checkpoint, TEXTS[:3], proposal="smoothing", budget=FitBudget(num_samples=30)
    )
    assert second.curve[0].strengths == first.strengths


def test_what_is_best_already_is_left_alone(checkpoint, monkeypatch):
    _, _, found = tuned(checkpoint)
    before = files(checkpoint)
    uncertain = replace(found, stderr=found.gain)
    monkeypatch.setattr(tuning, "fit", lambda *_: uncertain)
    tuned(checkpoint)
    assert files(checkpoint) == before


# -- the model's own texts ------------------------------------------------------------


def test_texts_of_the_model_are_drawn_from_p(checkpoint, monkeypatch):
    """Of one word, against the sum over all latents."""
    monkeypatch.setattr(tuning, "LONGEST", 1)
    number = 600
    texts = tuning.written(
        load_checkpoint(checkpoint), FitBudget(sleep=number, num_samples=20)
    )
    found = Counter(tuple(tiny_checkpoint.ids(*text.split())) for text in texts)
    truth = tiny_checkpoint.Truth(tiny_checkpoint.kglm(), penalized=False)
    words = {(): [END]} | {
        (n,): [n] for n in range(4, tiny_checkpoint.tokenizer().num_words)
    }
    p = {k: math.exp(truth.log_p(ids, only_copied=True)) for k, ids in words.items()}
    total = sum(p.values())  # of all but unknown words
    assert found.keys() <= p.keys()
    assert min(p.values()) > 0, "premise"
    for word, each in p.items():
        error = math.sqrt(number * each / total * (1 - each / total))
        assert abs(found[word] - number * each / total) < 5 * error


def test_a_model_tunes_without_any_text(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "LONGEST", 8)
    budget = FitBudget(sleep=12, num_samples=30, rounds=2)
    _, name, found = tune(checkpoint, [], proposal="smoothing", budget=budget)
    assert (name, found.better, found.num_texts) == ("smoothing", True, 12)
    loaded = load_checkpoint(checkpoint)
    assert loaded.model.tuned["smoothing"].texts == []
    assert loaded.model.tuned["smoothing"].history["budget"]["sleep"] == 12
    scorer = Scorer(loaded, ScoringOptions("is", 5, "smoothing"), quiet=True)
    score_file(scorer, TEXTS, tmp_path / "scored.jsonl")
    answers = read_record(tmp_path / "scored.jsonl").answers
    bounds = {answer.estimate.bound for answer in answers}
    assert bounds == {Bound.STOCHASTIC_LOWER}, "nothing to hold back"
    assert scorer.fingerprint["tuned_on"] is None


def test_own_texts_stand_beside_those_given(checkpoint, monkeypatch):
    monkeypatch.setattr(tuning, "LONGEST", 8)
    budget = replace(BUDGET, sleep=3)
    _, _, found = tune(checkpoint, TEXTS, proposal="smoothing", budget=budget)
    assert found.num_texts == len(TEXTS) + 3
    tuned = load_checkpoint(checkpoint).model.tuned["smoothing"]
    assert len(tuned.texts) == len(TEXTS)


# -- interruptions --------------------------------------------------------------------


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "where",
    [
        "lm_latent_eval.training.fitting._nearest",
        "lm_latent_eval.training.fitting._worth",
        "lm_latent_eval.scoring.tuning.dumps",
        "lm_latent_eval.manifest.replacing",
        "lm_latent_eval.manifest.write_text",
    ],
)
def test_an_interruption_leaves_it_as_it_was(checkpoint, where, monkeypatch, capsys):
    before = files(checkpoint)
    data = checkpoint.parent / "texts.txt"
    data.write_text("\n".join(TEXTS))
    command = ["tune", str(checkpoint), "--data", str(data), "--num-samples", "10"]
    monkeypatch.setattr(where, interrupted)
    assert main([*command, "--proposal", "smoothing"]) == 130
    monkeypatch.undo()
    assert files(checkpoint) == before
    assert f"interrupted; {checkpoint} is as it was" in capsys.readouterr().err
    assert load_checkpoint(checkpoint).model.tuned == {}


def test_another_writer_is_noticed(checkpoint, monkeypatch):
    def changed(*arguments):
        (checkpoint / "config.json").write_text(
            (checkpoint / "config.json").read_text() + "\n"
        )
        manifest.write(checkpoint)
        return "{}"

    monkeypatch.setattr(tuning, "dumps", changed)
    with pytest.raises(ValueError, match="has changed meanwhile"):
        tuned(checkpoint)
    assert not (checkpoint / FILE_NAME).exists()


# -- what is refused ------------------------------------------------------------------


def test_nothing_else_trains_or_tunes_it_meanwhile(checkpoint):
    before = files(checkpoint)
    with (
        only_trainer(checkpoint),
        pytest.raises(ValueError, match="another run is writing into"),
    ):
        tuned(checkpoint)
    assert files(checkpoint) == before


def test_what_has_nothing_to_tune_is_refused_in_a_line(
    lstm_directory, tmp_path, capsys
):
    data = tmp_path / "texts.txt"
    data.write_text("the fox saw .\n")
    assert main(["tune", str(lstm_directory), "--data", str(data)]) == 2
    assert capsys.readouterr().err == (
        f"lm-latent-eval: {lstm_directory} is a lstm model: it draws no latents, so "
        "there is nothing to tune\n"
    )


def test_bad_input_is_refused(checkpoint, tmp_path, capsys):
    with pytest.raises(ValueError, match="is no directory"):
        tune(tmp_path / "missing", TEXTS)
    with pytest.raises(ValueError, match="this checkpoint has adapted"):
        tune(checkpoint, TEXTS, proposal="best")
    with pytest.raises(ValueError, match="no text"):
        tune(checkpoint, [])
    assert main(["tune", str(checkpoint)]) == 2
    assert "--data FILE, or --sleep N" in capsys.readouterr().err
    assert load_checkpoint(checkpoint).model.tuned == {}


# -- provenance -----------------------------------------------------------------------


def test_scoring_a_text_that_was_tuned_on_is_found_out(checkpoint, tmp_path, caplog):
    tuned(checkpoint)
    loaded = load_checkpoint(checkpoint)
    texts = [TEXTS[1], "Ada saw the fox."]
    for proposal, warned in (("smoothing", True), ("adapted", False)):
        scorer = Scorer(loaded, ScoringOptions("is", 5, proposal), quiet=True)
        output = tmp_path / f"{proposal}.jsonl"
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            score_file(scorer, texts, output)
        said = "the smoothing proposal was tuned on 1 of these texts" in caplog.text
        assert said == warned
        bounds = [a.estimate.bound for a in read_record(output).answers]
        void = ["none", "stochastic lower"] if warned else ["stochastic lower"] * 2
        assert bounds == void, "no certificate of what was tuned on it"
        head = json.loads(output.read_text().splitlines()[0])
        data = loaded.model.tuned["smoothing"].data
        assert head["tuned_on"] == (data if warned else None)


def test_a_digest_of_texts_is_of_all_of_them():
    first = Tuned({}, ["a" * 16, "b" * 16], {})
    assert first.data == Tuned({}, ["a" * 16, "b" * 16], {"chosen": 1}).data
    assert first.data != Tuned({}, ["a" * 16], {}).data


def test_the_command_says_what_was_gained(checkpoint, tmp_path, capsys):
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    command = f"tune {checkpoint} --data {data} --proposal smoothing --num-samples 30"
    assert main(command.split()) == 0
    said = capsys.readouterr().out
    assert said.startswith("smoothing, by 4 texts of ")
    assert "on other draws, before: " in said
    assert "nearer to p(z|x) by " in said
    assert f"checkpoint {manifest.verify(checkpoint)}" in said
