"""Options: devices that are there, and those that move no likelihood, told by name."""

from __future__ import annotations

import logging

import pytest
import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring import interface
from lm_latent_eval.scoring.interface import scorer_of
from lm_latent_eval.scoring.options import parse_device
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.models.rnng import reference


def test_devices_that_are_there_are_taken(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(parse_device(name)) for name in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    assert not caplog.text
    assert str(parse_device("cuda:2")) == "cpu"
    assert "device=cuda:2 is not there; using the CPU" in caplog.text


TEXT = "She studied in the town."


@pytest.fixture
def told(caplog):
    """What opening a scorer says; every time, not once a process."""

    def tell(checkpoint, options, **how):
        interface._warn.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            scorer_of(checkpoint, options, quiet=True, **how)
        return [record.getMessage() for record in caplog.records]

    return tell


def test_draws_of_an_exact_model(told, lstm_directory):
    lstm = load_checkpoint(lstm_directory)
    options = {"num_samples": 9, "temperature": 2, "unk": "closed"}
    [said] = told(lstm, options)
    assert said.startswith("num_samples, temperature: no effect on likelihoods")
    assert told(lstm, {"unk": "closed"}) == []
    assert told(lstm, options | {"estimator": "is"}) == []


def test_beams_and_bounds(told):
    kglm = load_checkpoint(CHECKPOINT)
    beam = {"estimator": "beam", "num_samples": 3}
    seed, temperature = told(kglm, beam | {"seed": 1, "temperature": 2})
    assert seed.startswith("seed: ") and temperature.startswith("temperature: ")
    peeking = beam | {"temperature": 2, "proposal": "peeking"}
    assert told(kglm, peeking) == [], "which is searched under q, tempered"
    [said] = told(kglm, {"max_samples": 9})
    assert "target_stderr" in said
    assert told(kglm, {"max_samples": 9, "target_stderr": 1}) == []
    [said] = told(kglm, {"estimator": "is", "bounds": "both"})
    assert said.startswith("bounds: ") and "estimator=is has none" in said
    assert told(kglm, {"bounds": "both"}) == []
    [said] = told(kglm, {}, batch_size=2, max_batch_size=4)
    assert said.startswith("max_batch_size: no effect")
    assert told(kglm, {}, batch_size="auto", max_batch_size=4) == []


def test_a_warning_comes_once(caplog):
    interface._warn.cache_clear()
    model = lm_latent_eval.load(CHECKPOINT)
    for _ in range(2):
        model.log_likelihood([TEXT], estimator="beam", num_samples=2, seed=3)
    assert [r.getMessage()[:4] for r in caplog.records] == ["seed"]


def test_beams_that_are_told_to_ignore_the_temperature_do():
    model = lm_latent_eval.load(CHECKPOINT)

    def beam(proposal, temperature):
        [found] = model.log_likelihood(
            [TEXT],
            estimator="beam",
            num_samples=2,
            proposal=proposal,
            temperature=temperature,
        )
        return found.log_evidence

    assert beam("adapted", 0.3) == beam("adapted", 3.0)
    assert beam("smoothing", 0.3) != beam("smoothing", 3.0), "premise"
    rnng = reference.model("A", "eos")
    batch = TokenBatch.collate([[5, 4, 6, 5, END]], first=START)
    found = []
    for temperature in (0.3, 3.0):
        proposal = rnng.proposal("crf", temperature)
        trees = proposal.beam(proposal.encode(batch), 3).latents
        found.append(rnng.log_joint(rnng.encode(batch), trees))
    assert found[0].allclose(found[1], rtol=1e-12)
    assert {("kglm", "adapted"), ("rnng", "crf")} == interface._UNTEMPERED
