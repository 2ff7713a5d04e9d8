"""A new EntityNLM small enough to list every chain, and lopsided."""

from __future__ import annotations

from collections.abc import Sequence

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests.tiny_models import randomised

VOCABULARY = 6
BEYOND = 6
"""A word that is known but cannot be uttered."""
MAX_LENGTH = 2


def entitynlm(*, tied: bool = True) -> EntityNLM:
    config = EntityNLMConfig(
        vocab_size=VOCABULARY,
        num_words=VOCABULARY + 1,
        embedding_dim=4,
        hidden_size=5,
        num_layers=2,
        max_mention_length=MAX_LENGTH,
        tie_weights=tied,
        num_unknown_types=7,
    )
    return randomised(EntityNLM(config).double(), 0, 0.8).eval()


def batch(*texts: Sequence[int]) -> TokenBatch:
    return TokenBatch.collate(texts, first=START)
