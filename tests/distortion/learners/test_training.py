"""Training: its steps, its learning rates, its best model, and its interruptions."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.catalog import load_language, load_learner
from lm_latent_eval.distortion.columns import read_epochs
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus, TokenIds
from lm_latent_eval.distortion.learners import data as sequences
from lm_latent_eval.distortion.learners import training
from lm_latent_eval.distortion.learners.architectures import (
    Configuration,
    PretrainedStart,
)
from lm_latent_eval.distortion.learners.data import CorpusData, FreshData, TextData
from lm_latent_eval.distortion.learners.options import Epoch, History, TrainingOptions
from lm_latent_eval.distortion.learners.training import train_learner
from lm_latent_eval.estimators import Bound
from tests.distortion.languages.tiny import regular
from tests.distortion.learners.tiny import GPT2, LSTM, MAX_LENGTH, Double, draw

STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Corpora:
    """Train, dev and test sequences of one language."""

    def __init__(self, directory: Path, num: int = 300) -> None:
        self.train = draw(directory / "train", num)
        self.dev = draw(directory / "dev", 40, first=5000)
        self.test = draw(directory / "test", 40, first=6000)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Corpora:
    return Corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpora) -> Path:
    """A training of four epochs, which leaves global random numbers as they were."""

    def state():
        numpy_state = np.random.get_state()[1].tolist()
        return [random.getstate(), numpy_state, torch.get_rng_state().tolist()]

    folder, before = tmp_path_factory.mktemp("whole"), state()
    learn(folder, corpora, epochs=4)
    assert state() == before
    return folder


def learn(output, corpora, start=None, *, data=None, dev=None, test=None, **given):
    """Train on the corpora, or on other data."""
    options = {"epochs": 3, "learning_rate": 0.02, "batch_size": 32} | given
    return train_learner(
        output,
        start or Configuration(GPT2),
        data or CorpusData(corpora.train),
        dev or CorpusData(corpora.dev),
        TrainingOptions(**options),
        test=test or corpora.test,
        track=25,
        device="cpu",
        quiet=True,
    )


def inject(monkeypatch, losses: list[float]) -> None:
    """Say what the validation losses are, from the first epoch on."""
    said = iter(losses)
    monkeypatch.setattr(training, "nats_per_token", lambda *_: next(said))


def scored_nats(learner: CausalLanguage, corpus: Corpus) -> float:
    """- log p a token, as the learner scores the sequences of a corpus."""
    ids = corpus.read(corpus.indices).sequences
    return -learner.score(ids, corpus.indices).log_p.sum().item() / sum(map(len, ids))


def nats_by_hand(model: Any, sequences: list[list[int]]) -> torch.Tensor:
    """- sum log p, a sequence and a token at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for ids in sequences:
        logits = model(torch.tensor([[0, *ids[:-1]]])).logits[0]
        for row, token in zip(logits, ids, strict=True):
            total = total - (row[token] - row.exp().sum().log())
    return total


@pytest.mark.parametrize(("micro_batch", "max_grad_norm"), [(None, 0.0), (2, 0.5)])
def test_updates_are_those_of_adam(tmp_path, micro_batch, max_grad_norm):
    corpora = Corpora(tmp_path, num=5)
    sequences = corpora.train.read(range(5)).sequences
    assert any(ids[-1] != 1 for ids in sequences), "premise: a sequence was cut"
    start, rate = Double(GPT2 | STILL), 0.01
    how = {"micro_batch": micro_batch, "max_grad_norm": max_grad_norm}
    history = learn(tmp_path / "out", corpora, start, learning_rate=rate, **how)
    assert history.best.epoch == 3, "premise: the last weights are kept"
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    model = start.build(TokenIds.of(corpora.train), MAX_LENGTH, 0)
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    for epoch in history.epochs:
        loss = nats_by_hand(model, sequences) / sum(map(len, sequences))
        assert epoch.train_nats_per_token == pytest.approx(loss.item(), rel=1e-12)
        adam.zero_grad()
        loss.backward()
        limit = max_grad_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert norm > 0.5, "premise: there is something to scale"
        adam.step()
    there, num_sure = dict(found.named_parameters()), 0
    for name, weights in model.named_parameters():
        # Adam divides by gradients: where one is as good as 0, rounding decides.
        sure = (adam.state[weights]["exp_avg_sq"] / (1 - 0.999**3)).sqrt() > 1e-7
        num_sure += int(sure.sum())
        kept = there[name][sure]
        torch.testing.assert_close(kept, weights[sure], rtol=1e-8, atol=1e-8)
    assert num_sure > 0.8 * sum(w.numel() for w in model.parameters())


@pytest.mark.parametrize(
    ("config", "losses"),
    [(LSTM, None), (GPT2, [3.0, 2.0, 2.0, 2.5])],
    ids=["lstm", "gpt2"],
)
def test_folder_has_the_best_model_and_its_scores(
    tmp_path, corpora, monkeypatch, config, losses
):
    if losses:
        inject(monkeypatch, losses)
    history = learn(tmp_path, corpora, Double(config), epochs=4, learning_rate=0.02)
    epochs = history.epochs
    assert epochs[-1].dev_nats_per_token < epochs[0].dev_nats_per_token - 0.02
    assert [e.sequences_seen for e in epochs] == [300, 600, 900, 1200]
    assert [e.updates for e in epochs] == [10, 20, 30, 40]
    learner = load_learner(tmp_path, corpora.dev, dtype=torch.float64)
    if losses:
        assert history.best.epoch == 2, "the first of the lowest, not the last"
    else:
        loss = scored_nats(learner, corpora.dev)
        assert history.best.dev_nats_per_token == pytest.approx(loss, rel=1e-12)
    for name, corpus in (("train", corpora.train), ("test", corpora.test)):
        scored = read_epochs(tmp_path / "trajectories" / name)
        assert len(scored) == 4
        columns = scored[history.best.epoch - 1]
        read = corpus.read(corpus.indices[:25])
        assert columns.index.tolist() == [*corpus.indices[:25]]
        assert columns.num_tokens.tolist() == [*map(len, read.sequences)]
        assert columns.ended.tolist() == [ids[-1] == 1 for ids in read.sequences]
        assert torch.equal(columns.true_log_p, read.log_p)
        again = learner.score(read.sequences, range(25)).log_p
        torch.testing.assert_close(columns.model_log_p, again, rtol=1e-12, atol=1e-12)
        assert columns.stderr.tolist() == [0.0] * 25
        assert learner.bound is Bound.EXACT
    text = (tmp_path / "history.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["best"] for line in lines].index(True) == history.best.epoch - 1
    perplexity = np.exp(lines[0]["dev_nats_per_token"])
    assert lines[0]["dev_perplexity"] == pytest.approx(perplexity)
    files = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not any(name.startswith("checkpoint") for name in files)
    assert AutoTokenizer.from_pretrained(tmp_path).decode([2, 4, 1]) == "a never </s>"
    language = CausalLanguage.load(tmp_path, device="cpu", dtype=torch.float64)
    drawn = language.sample(0, range(20), 9)
    assert len({*map(len, drawn.sequences)}) > 3, "premise: sequences leave a batch"
    again = learner.log_p(drawn.sequences)
    torch.testing.assert_close(drawn.log_p, again, rtol=1e-12, atol=1e-12)


def test_learning_rate_is_halved_unless_the_loss_is_a_new_lowest(
    tmp_path, corpora, monkeypatch
):
    losses = [3.0, 2.0, 2.5, 2.25, 1.5, 1.5, 1.25, 1.2499, 1.2]
    inject(monkeypatch, losses)
    history = learn(tmp_path, corpora, epochs=9, learning_rate=0.01)
    rates = [epoch.learning_rate / 0.01 for epoch in history.epochs]
    assert rates == [1, 1, 1, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125]
    assert [e.dev_nats_per_token for e in history.epochs] == losses
    assert history.best.epoch == 9


def test_interrupted_training_ends_as_one_that_was_not(
    tmp_path, corpora, whole, monkeypatch
):
    score, calls = training.nats_per_token, []

    def stop(*given: Any) -> float:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*given)

    monkeypatch.setattr(training, "nats_per_token", stop)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "parts", corpora, epochs=4)
    cut_short = tmp_path / "parts" / "checkpoints" / "checkpoint-30"
    cut_short.mkdir()
    (cut_short / "trainer_state.json").write_text('{"log_hist')
    with pytest.raises(ValueError, match=r"another training .*epochs"):
        learn(tmp_path / "parts", corpora, epochs=5)
    torch.manual_seed(99)  # whatever happened to the global numbers meanwhile
    parts = learn(tmp_path / "parts", corpora, epochs=4)
    assert len(calls) == 5, "premise: two epochs were not repeated"
    for one, other in zip(parts.epochs, History.read(whole).epochs, strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)
    assert len({e.dev_nats_per_token for e in parts.epochs}) == 4, "premise"
    scores = [*whole.rglob("*.arrow")]
    assert len(scores) == 2 * 4, "premise: of train and test, in every epoch"
    for path in (whole / "model.safetensors", *scores):
        other = tmp_path / "parts" / path.relative_to(whole)
        assert path.read_bytes() == other.read_bytes()


def test_complete_training_is_not_repeated(corpora, whole, monkeypatch):
    (whole / "checkpoints.done").mkdir()  # as a killed run may leave it
    monkeypatch.delattr(training, "LearnerTrainer")
    assert learn(whole, corpora, epochs=4) == History.read(whole)
    assert not (whole / "checkpoints.done").exists()


def test_the_folder_of_another_model_is_refused(tmp_path, corpora):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="holds another model: give the output"):
        learn(tmp_path, corpora)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_ideal_world_never_shows_a_sequence_twice(tmp_path, corpora, monkeypatch):
    trained: list[tuple[int, ...]] = []
    pad = sequences.padded

    def spied(rows: Any, begin_id: int) -> Any:
        trained.extend(tuple(row.tolist()) for row in rows)
        return pad(rows, begin_id)

    monkeypatch.setattr(sequences, "padded", spied)
    origin, output = draw(tmp_path / "origin", 1, first=100, seed=4), tmp_path / "out"
    data = FreshData(origin, regular(), 50)
    learn(output, corpora, data=data, epochs=4, batch_size=16)
    drawn = regular().sample(4, range(100, 300), MAX_LENGTH).sequences
    for epoch in range(4):
        some = slice(50 * epoch, 50 * (epoch + 1))
        assert sorted(trained[some]) == sorted(map(tuple, drawn[some]))
    assert [path.name for path in (output / "trajectories").iterdir()] == ["test"]


def test_training_goes_on_from_a_pretrained_model_on_text(tmp_path, corpora, whole):
    text = tmp_path / "text.txt"
    text.write_text("a b b\nb a\n" * 40)
    data = TextData(text, TokenIds.read(whole), MAX_LENGTH)
    how = {"data": data, "dev": data, "batch_size": 16}
    history = learn(tmp_path / "second", corpora, PretrainedStart(whole), **how)
    before = load_learner(whole, corpora.dev, device="cpu")
    after = load_learner(tmp_path / "second", corpora.dev, device="cpu")
    rows = [[2, 3, 3, 1], [3, 2, 1]]
    old, new = (-x.score(rows, [0, 1]).log_p.sum().item() / 7 for x in (before, after))
    assert history.best.dev_nats_per_token == pytest.approx(new, abs=1e-5)
    assert new < old - 0.1


def test_divergence_is_named(tmp_path, corpora):
    start = Configuration(GPT2 | {"initializer_range": 1e20})
    with pytest.raises(FloatingPointError, match=r"diverged in epoch 1 .* 0\.02"):
        learn(tmp_path, corpora, start)


def test_data_that_do_not_fit_are_refused(tmp_path, corpora):
    with pytest.raises(ValueError, match=r"test sequences 0 \.\. 299 .* trained on"):
        learn(tmp_path / "1", corpora, test=corpora.train)
    with pytest.raises(ValueError, match="validation sequences"):
        learn(tmp_path / "2", corpora, dev=CorpusData(corpora.train))
    other = draw(tmp_path / "other", 5, language=load_language("agreement"))
    with pytest.raises(ValueError, match=r"has \d+ token ids"):
        learn(tmp_path / "3", corpora, dev=CorpusData(other))
    text = tmp_path / "text.txt"
    text.write_text("")
    nothing = TextData(text, TokenIds.of(corpora.train), MAX_LENGTH)
    with pytest.raises(ValueError, match=r"text\.txt has no text"):
        learn(tmp_path / "4", corpora, dev=nothing)
    assert {path.name for path in tmp_path.iterdir()} == {"other", "text.txt"}


def test_impossible_options_are_refused():
    wrong = {"micro_batch": 0, "learning_rate": 1e300, "max_grad_norm": -1}
    # The Trainer refuses these too, but late: there is a folder.
    late = [("seed", -1), ("seed", 2**32), ("epochs", 2**31)]
    for name, value in [*wrong.items(), *late]:
        with pytest.raises(ValueError, match=name):
            TrainingOptions(**{"epochs": 1, "learning_rate": 0.1, name: value})


def test_command_trains(tmp_path, corpora, capsys):
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    shared = f"distort train --data {corpora.train.directory}"
    shared += f" --dev {corpora.dev.directory} --test {corpora.test.directory}"
    shared += " --device cpu --epochs 2 --batch-size 32"
    given = f" --config {tmp_path}/config.json --learning-rate 0.02"
    assert main(f"{shared} --output {tmp_path}/out {given}".split()) == 0
    out, err = capsys.readouterr()
    best = History.read(tmp_path / "out").best
    assert out.startswith(f"wrote {tmp_path / 'out'}: epoch {best.epoch} of 2, ")
    assert f"perplexity {best.dev_perplexity:.4g} per token\n" in out
    assert "epoch 2: nats a token, train -> dev" in err
    given = f" --init {tmp_path}/out --learning-rate 0.01 --fresh 40"
    assert main(f"{shared} --output {tmp_path}/more {given}".split()) == 0
    assert History.read(tmp_path / "more").epochs[1].sequences_seen == 80


def test_mixed_precision_keeps_weights_and_scores_in_float32(tmp_path, corpora, whole):
    history = learn(tmp_path, corpora, epochs=1, bf16=True)
    both = history, History.read(whole)
    first, other = (each.epochs[0].train_nats_per_token for each in both)
    # bfloat16 has 8 bits of mantissa.
    assert first != other and first == pytest.approx(other, rel=2**-7)
    learner = load_learner(tmp_path, corpora.dev, device="cpu", batch_size=32)
    weights = learner.model.state_dict().values()
    assert {each.dtype for each in weights} == {torch.float32}
    loss = scored_nats(learner, corpora.dev)
    assert history.best.dev_nats_per_token == pytest.approx(loss, rel=1e-6)


def test_a_history_that_is_none_is_named(tmp_path):
    odd = dict.fromkeys([field.name for field in fields(Epoch)], 1) | {"seconds": True}
    for line in ("[" * 100_000, "3", "{}", json.dumps(odd)):
        (tmp_path / "history.jsonl").write_text(line + "\n")
        with pytest.raises(ValueError, match="is not the history of a training"):
            History.read(tmp_path)
