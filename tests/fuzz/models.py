"""Tiny checkpoints of every model, in float64."""

from __future__ import annotations

from functools import partial

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


srnn = partial(tiny_models.srnn, 1, WORDS["vocab_size"], 4)


lrlm = partial(relation_model, "lrlm")
BUILD = {
    "entitynlm": entitynlm,
    "kglm": tiny_checkpoint.kglm,
    "kglm_spelled": tiny_checkpoint.kglm,
    "lrlm": lrlm,
    "lrlm_spelled": lrlm,
    "lstm": tiny_checkpoint.lstm,
    "lstm_spelled": tiny_checkpoint.lstm,
    "nklm": partial(relation_model, "nklm"),
    "rnng": rnng,
    "srnn": srnn,
}
"""Name -> what builds it. Spelled ones charge every character."""
