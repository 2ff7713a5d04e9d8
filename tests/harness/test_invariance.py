"""Numbers do not depend on how requests are batched, or where long texts are cut.

In float64, to 1e-9: rounding may differ with the shape of a batch, draws may not (a
draw flips where a rounding difference straddles its random number: about once in 1e12
decisions).
"""

from __future__ import annotations

import pytest

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.inference import importance, particles
from lm_latent_eval.scoring import evaluation
from tests.tiny_checkpoint import conditional, generation, rolling

TEXTS = (
    "Ada saw the fox",
    "the fox. " * 9,
    "",
    "Bo",
    "a zebra saw Ada. the fox saw Bo. " * 2,
    "the the the saw",
    "Ada saw the fox",
)
PAIRS = (
    ("Ada saw", " the fox"),
    ("Ada saw", " Bo. the fox saw Ada"),
    ("", "the fox"),
    ("the fox. " * 5, "Ada saw Bo"),
    ("the fo", "x"),
    ("Bo", ""),
)
SETTINGS = (
    {"num_samples": 6, "proposal": "peeking", "temperature": 1.3},
    {"num_samples": 6, "proposal": "smoothing"},
    {"num_samples": 6, "estimator": "auto"},
    {"num_samples": 6, "estimator": "beam", "proposal": "prior"},
    {"num_samples": 6, "target_stderr": 0.3, "max_samples": 40},
)
NIGHTLY = pytest.mark.nightly


def errors(estimate):
    """Those of an estimate that are known."""
    return [e for e in (estimate.stderr, estimate.draws_stderr) if e is not None]


def everything(lm: LatentKGLM) -> list[object]:
    """Answers of every kind, as plain numbers and strings."""
    whole = lm.loglikelihood_rolling(rolling(*TEXTS))
    parts = lm.loglikelihood(conditional(*PAIRS))
    numbers = [
        x for a in whole for x in (*a.estimate.log_weights, a, *errors(a.estimate))
    ]
    numbers += [x for a, _ in parts for x in (a, *errors(a.estimate))]
    greedy = lm.generate_until(generation(*TEXTS, max_gen_toks=3))
    drawn = lm.generate_until(generation(*TEXTS, max_gen_toks=3, do_sample=True))
    return [
        pytest.approx([float(x) for x in numbers], rel=1e-9, abs=1e-9),
        [is_greedy for _, is_greedy in parts],
        [a.estimate.num_samples for a in whole],
        [a.estimate.stderr is None for a in whole],
        greedy,
        drawn,
    ]


def same(a: list[object], b: list[object]) -> bool:
    """Compare two of ``everything``; numbers to 1e-9."""
    return a[0].expected == b[0] and a[1:] == b[1:]


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS[:2],
        *(pytest.param(s, marks=pytest.mark.nightly) for s in SETTINGS[2:]),
    ],
    ids=str,
)
def test_batches_memory_and_pieces_move_no_number(backend, settings, monkeypatch):
    """A few latent decisions, or scores, at a time instead of millions.

    Where a long text is cut moves numbers of the one proposal that reads ahead to the
    end of its piece.
    """
    alone = everything(backend(batch_size=1, **settings))
    assert same(alone, everything(backend(batch_size=4, **settings)))
    for module in (importance, evaluation):
        monkeypatch.setattr(module, "DECISIONS", 32)
    monkeypatch.setattr(importance, "ROWS", 5)
    monkeypatch.setattr(evaluation, "TABLE", 256)
    assert same(alone, everything(backend(**settings)))
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", 5)
    pieces = everything(backend(batch_size=64, **settings))
    assert same(pieces, everything(backend(batch_size=1, **settings)))
    assert same(alone, pieces) == (settings.get("proposal") != "smoothing")
