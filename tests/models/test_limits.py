"""What is computed at once is bounded, and work that is cut moves no number."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel, RNNLanguageModel
from lm_latent_eval.models.rnng.networks import GenerativeModel, SpanScores
from lm_latent_eval.testing.model_laws import numbers_of
from tests.test_laws import PAIRS, TINY_MODELS

ROWS = 2
"""Scores of all words, of spans or of stacks that are held at once."""
LIMITS = {
    "entitynlm": {
        "entitynlm.network.NUMBERS": 12,
        "entitynlm.given_chains.NUMBERS": 40,
    },
    "lrlm": {"lrlm.modeling.TABLE": 10, "lrlm.network.TABLE": 5},
    "lstm": {"recurrent_lm.TABLE": 10},
    "nklm": {"nklm.modeling.TABLE": 10, "nklm.network.TABLE": 10},
    "rnn": {"recurrent_lm.TABLE": 10},
    "rnng": {
        "rnng.joint.STACKS_AT_ONCE": 2,
        "rnng.networks.TABLE": 12,
        "rnng.networks.SPANS_AT_ONCE": 2,
    },
}
"""Those of KGLM, which has many, are tested with it."""
WATCHED = {
    "lstm": (LSTMLanguageModel, "log_prob"),
    "rnn": (RNNLanguageModel, "log_prob"),
    "rnng": (GenerativeModel, "log_words"),
    "rnng crf": (SpanScores, "_score"),
}
"""What gives a row for each that it is asked for."""


@pytest.mark.parametrize(("name", "which"), [p for p in PAIRS if p[0] in LIMITS])
def test_parts_move_no_number(name, which, monkeypatch):
    case, rows = TINY_MODELS[name].case(), []
    if watched := WATCHED.get(f"{name} {which}", WATCHED.get(name)):
        owner, method = watched
        found = getattr(owner, method)

        def watching(*arguments):
            result = found(*arguments)
            rows.append(len(result))
            return result

        monkeypatch.setattr(owner, method, watching)
    whole = numbers_of(case, which)
    assert not watched or max(rows) > ROWS, "premise: there is something to cut"
    rows.clear()
    for place, size in LIMITS[name].items():
        monkeypatch.setattr(f"lm_latent_eval.models.{place}", size)
    for what, number in numbers_of(case, which).items():
        torch.testing.assert_close(number, whole[what], rtol=0, atol=1e-10, msg=what)
    assert not watched or max(rows) <= ROWS
