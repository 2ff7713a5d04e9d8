"""Tiny checkpoints of every model, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from tests import tiny_checkpoint, tiny_models
from tests.models.lrlm.tiny import worded as relation_model
from tests.tiny_models import randomised

WORDS = tiny_checkpoint.vocabulary()


def entitynlm() -> EntityNLM:
    config = EntityNLMConfig(
        embedding_dim=4, hidden_size=5, max_mention_length=2, **WORDS
    )
    return randomised(EntityNLM(config).double(), 0, 0.7).eval()


def rnng() -> RNNG:
    config = RNNGConfig(hidden_size=4, proposal_size=3, max_words=40, **WORDS)
    return randomised(RNNG(config).double(), 3, 0.7).eval()


rnn = partial(tiny_models.rnn, spread=0.7, **WORDS)
srnn = partial(tiny_models.srnn, 1, WORDS["vocab_size"], 4)


def _writer(build: Callable[[], Any], *, spelled: bool = False):
    def write(folder: Path) -> Path:
        writing = tiny_checkpoint.orthography() if spelled else None
        return tiny_checkpoint.write(folder, build(), writing)

    return write


WRITE = {
    "entitynlm": _writer(entitynlm),
    "kglm": _writer(tiny_checkpoint.kglm),
    "kglm_spelled": _writer(tiny_checkpoint.kglm, spelled=True),
    "lrlm": _writer(partial(relation_model, "lrlm")),
    "lrlm_spelled": _writer(partial(relation_model, "lrlm"), spelled=True),
    "lstm": _writer(tiny_checkpoint.lstm),
    "lstm_spelled": _writer(tiny_checkpoint.lstm, spelled=True),
    "nklm": _writer(partial(relation_model, "nklm")),
    "rnn": _writer(rnn),
    "rnng": _writer(rnng),
    "srnn": _writer(srnn),
}
"""Name -> what writes its directory. Spelled ones charge every character."""
