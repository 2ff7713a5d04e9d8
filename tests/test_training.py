"""Training: it learns, it resumes bit for bit, it keeps the best epoch, it stops."""

from __future__ import annotations

import json
import math
import pickle
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from lm_latent_eval.models.kglm.data import Knowledge
from lm_latent_eval.models.kglm.latents import Walks
from lm_latent_eval.models.kglm.training import train_kglm
from lm_latent_eval.training.options import (
    KGLMSize,
    LDAFit,
    MarginObjective,
    NKLMSize,
    Options,
)
from lm_latent_eval.training.supervised import Part, Trainer, state_file
from tests import tiny_models
from tests.simulated_device import SIMULATED, simulated_device

OPTIONS = Options(epochs=5, batch_size=4, learning_rate=0.05, patience=2)
SIZE = KGLMSize(8, 6, 10, num_layers=2, cutoff=20, dropout=0.3)


class Coin(nn.Module):
    """A biased coin, seen through dropout; its loss is that of the ones and zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.dropout = nn.Dropout(0.4)

    def forward(self, items: list[list[int]]) -> torch.Tensor:
        score = self.dropout(self.score).sum()
        ones, tokens = sum(map(sum, items)), sum(map(len, items))
        zeros = tokens - ones
        return -ones * nn.functional.logsigmoid(score) - zeros * (
            nn.functional.logsigmoid(-score)
        )


def trainer(directory: Path, options: Options = OPTIONS, loss=None, parts=2, **more):
    """A trainer of coins; ``loss`` replaces that of the first."""
    coins = [Coin() for _ in range(parts)]
    wrapped = {f"coin{i}": Part(c, c) for i, c in enumerate(coins)}
    if loss is not None:
        wrapped["coin0"] = Part(coins[0], lambda items: loss(coins[0], items))
    return Trainer(wrapped, size=len, options=options, directory=directory, **more)


def texts(seed: int, share: float, number: int = 40) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (number,), generator=generator).tolist()
    return [
        (torch.rand(n, generator=generator) < share).long().tolist() for n in lengths
    ]


TRAIN, DEV = texts(0, 0.2), texts(1, 0.2)


def weights(run: Trainer) -> dict[str, list[float]]:
    """Bit for bit."""
    return {name: part.module.score.tolist() for name, part in run.parts.items()}


def test_there_must_be_something_to_learn_from_and_to_validate_with(tmp_path):
    for train, dev, said in ((TRAIN, [], "development"), ([[]], DEV, "training")):
        run = trainer(tmp_path, OPTIONS)
        with pytest.raises(ValueError, match=f"there are no .* in the {said} data"):
            run.run(train, dev)


def test_the_best_epoch_is_kept_and_training_stops(tmp_path):
    """Development text unlike the training text: sooner or later it gets worse."""
    run = trainer(tmp_path, replace(OPTIONS, epochs=100, patience=3))
    history = run.run(TRAIN, texts(2, 0.55))
    assert len(history) < 100
    for name in run.parts:
        losses = [e["dev"][name] for e in history if name in e["dev"]]
        best = losses.index(min(losses))
        assert len(losses) == best + 4, "three epochs without a better one"
        assert run.evaluate(texts(2, 0.55), [name])[name] == losses[best]
        rate = run.optimizers[name].param_groups[0]["lr"]
        worse = sum(x >= min(losses[:i]) for i, x in enumerate(losses) if i)
        assert rate == OPTIONS.learning_rate / 2**worse


def test_parts_stop_alone(tmp_path):
    """A part that no longer improves is left alone while another goes on."""

    def idle(coin, items):
        return coin(items) * 0 + 5.0

    run = trainer(tmp_path, replace(OPTIONS, epochs=12), loss=idle)
    history = run.run(TRAIN, DEV)
    assert [("coin0" in e["dev"]) for e in history[:4]] == [True, True, True, False]
    assert "coin1" in history[3]["dev"]
    for name, items in (("train", TRAIN), ("dev", DEV)):
        a_token = 5.0 * 10 / sum(map(len, items))  # ten batches
        assert history[0][name]["coin0"] == pytest.approx(a_token), "nats a token"


# -- interruption -------------------------------------------------------------------


def interrupting(at_call: int):
    calls = iter(range(1, 10**6))

    def loss(coin, items):
        if next(calls) == at_call:
            raise KeyboardInterrupt
        return coin(items)

    return loss


@pytest.mark.parametrize("at_call", [3, 35, 60])
def test_an_interrupted_run_ends_as_if_it_were_not(tmp_path, at_call, capsys):
    """In the first epoch, in later ones, while training or evaluating."""
    whole = trainer(tmp_path / "whole")
    wanted = whole.run(TRAIN, DEV)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "cut", loss=interrupting(at_call)).run(TRAIN, DEV)
    resumed = trainer(tmp_path / "cut")
    capsys.readouterr()
    assert resumed.run(TRAIN, DEV) == wanted
    done = (at_call - 1) // 20  # 10 batches, then 10 to evaluate
    assert (f"resuming after epoch {done} " in capsys.readouterr().err) is (done > 0)
    assert weights(resumed) == weights(whole)
    finished = trainer(tmp_path / "cut", loss=interrupting(1))
    assert finished.run(TRAIN, DEV) == wanted, "nothing is repeated"
    assert weights(finished) == weights(whole)


# -- other runs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"options": {"seed": 1}}, "seed is 0 there and 1 here"),
        ({"options": {"epochs": 1}}, "it has 2 epochs behind it"),
        ({"train": TRAIN[1:]}, "digest of the texts is "),
        ({"dev": DEV[1:]}, "digest of the texts is "),
        ({"parts": 1}, "it trained coin0, coin1 of other shapes"),
        ({"about": {"dropout": 0.4}}, "dropout is None there and 0.4 here"),
    ],
    ids=str,
)
def test_another_run_starts_anew(tmp_path, change, why, capsys):
    """As if there were nothing, and keeps what it found."""
    trainer(tmp_path / "a", replace(OPTIONS, epochs=2)).run(TRAIN, DEV)
    options = replace(OPTIONS, **change.get("options", {}))
    more = {name: change[name] for name in ("parts", "about") if name in change}
    train, dev = change.get("train", TRAIN), change.get("dev", DEV)
    run, fresh = (trainer(tmp_path / f, options, **more) for f in ("a", "fresh"))
    before = run.state.path.read_bytes()
    capsys.readouterr()
    history = run.run(train, dev)
    said = capsys.readouterr().err
    assert "resuming" not in said
    assert "starting anew: " in said and why in said
    aside = run.state.path.with_name(f"{run.state.path.name}.before")
    assert str(aside) in said and aside.read_bytes() == before
    assert history == fresh.run(train, dev) and weights(run) == weights(fresh)


@pytest.mark.parametrize("content", ["half", b"", b"not a state", {"options": Path}])
def test_a_damaged_state_says_what_to_do(tmp_path, content, capfd):
    """Of what is no data torch would say how to run what is in it: that is not said."""
    trainer(tmp_path, replace(OPTIONS, epochs=1)).run(TRAIN, DEV)
    if content == "half":
        tiny_models.damage(state_file(tmp_path))
    elif isinstance(content, bytes):
        state_file(tmp_path).write_bytes(content)
    else:
        torch.save(content, state_file(tmp_path))
        with pytest.raises(pickle.UnpicklingError, match="weights_only"):
            torch.load(state_file(tmp_path), weights_only=True)
    with pytest.raises(ValueError, match=r"is damaged .* remove the file") as caught:
        trainer(tmp_path).run(TRAIN, DEV)
    assert "weights_only" not in "".join(traceback.format_exception(caught.value))
    assert "weights_only" not in "".join(capfd.readouterr())


# -- numbers that are none ----------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_an_error(tmp_path, bad):
    calls = iter(range(100))

    def spoiled(coin, items):
        return coin(items) * (bad if next(calls) == 25 else 1.0)

    run = trainer(tmp_path, loss=spoiled)
    with pytest.raises(FloatingPointError, match=r"coin0 diverged in epoch 2 .* lower"):
        run.run(TRAIN, DEV)
    state = torch.load(state_file(tmp_path), weights_only=True)
    assert len(json.loads(state["history"])) == 1, "the epoch before is still there"


COUNTS = {"epochs": 0, "batch_size": 0, "patience": 0, "seed": 10**13}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Options, {**COUNTS, "learning_rate": math.nan, "clip": -1.0}),
        (LDAFit, {"alpha": math.inf, "eta": 1e300, "seed": 2**63}),
        (KGLMSize, {"max_aliases": -1, "max_alias_words": 0}),
        (NKLMSize, {"max_aliases": -1, "max_alias_words": 0, "num_pieces": 0}),
        (MarginObjective, {"distortion": 0.0, "l2": -1}),
        (MarginObjective, {"distortion": 0.6, "l2": math.nan}),
        (MarginObjective, {"distortion": math.nan}),
    ],
)
def test_options_that_cannot_train_are_refused(kind, values):
    for name, value in values.items():
        with pytest.raises(ValueError, match=rf"{name}=.*: expected"):
            kind(**{name: value})


# -- whole models -------------------------------------------------------------------


def test_a_model_resumes_and_leaves_nothing_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the spelling's
    data = tiny_models.annotated(18)
    options = Options(epochs=2, batch_size=3, learning_rate=0.01)
    build = {"min_count": 2, "size": SIZE, "options": options}

    def train(name, **more):
        return train_kglm(data[:12], data[12:], tmp_path / name, **(build | more))

    def cut_short(name, at_call, **more):
        calls = iter(range(1, 100))

        def interrupted(*columns):
            if next(calls) == at_call:
                raise KeyboardInterrupt
            return Walks(*columns)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("lm_latent_eval.models.kglm.training.Walks", interrupted)
            train(name, **more)

    whole = train("whole")
    cut_short("cut", 25)  # 4 parts x (4 + 2 batches) an epoch
    assert (state_file(tmp_path / "cut")).exists()
    assert not (tmp_path / "cut" / "config.json").exists()
    state = state_file(tmp_path / "cut").read_bytes()
    resumed = train("cut")
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    state_file(tmp_path / "elsewhere").write_bytes(state)
    with simulated_device():
        model = train("elsewhere", options=replace(options, device=SIMULATED))
    torch.testing.assert_close(model.state_dict(), whole.state_dict())
    assert capsys.readouterr().err.count("resuming after epoch 1") == 2
    assert not list(tmp_path.glob("cut.*")), "nothing beside it, now"
    state_file(tmp_path / "cut").write_bytes(state)
    cut_short("cut", 1, knowledge=Knowledge((("Ada", "knows", "Bo"),), {}))
    assert "digest of the knowledge is" in capsys.readouterr().err, "other facts"
