"""Options: devices that are there, and those that move no likelihood, told by name."""

from __future__ import annotations

import logging
import re

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


EXACT = {"num_samples": 9, "temperature": 2, "unk": "closed"}
BEAM = {"estimator": "beam", "num_samples": 3}


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("lstm", EXACT, ["num_samples, temperature: no effect on likelihoods"]),
        ("lstm", {"unk": "closed"}, []),
        ("lstm", EXACT | {"estimator": "is"}, []),
        ("kglm", BEAM | {"seed": 1, "temperature": 2}, ["seed: ", "temperature: "]),
        # Which is searched under q, tempered.
        ("kglm", BEAM | {"temperature": 2, "proposal": "peeking"}, []),
        ("kglm", {"max_samples": 9}, ["max_samples: .* target_stderr"]),
        ("kglm", {"max_samples": 9, "target_stderr": 1}, []),
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
    interface._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        scorer_of(checkpoint, options, quiet=True, **how)
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == len(said)
    for line, wanted in zip(found, said, strict=True):
        assert re.match(wanted, line)


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
