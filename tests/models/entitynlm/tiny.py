"""A new EntityNLM, lopsided and small enough to list every chain, and those chains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.latents import Chains
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


@cache
def every_chain(num_tokens: int, max_mention_length: int) -> Chains:
    """List all chains, (1, K, T), depth first."""
    chains: list[list[tuple[int, int]]] = [[]]
    for _ in range(num_tokens):
        chains = [
            [*chain, last]
            for chain in chains
            for last in _goes_on(chain, max_mention_length)
        ]
    listed = torch.tensor(chains).view(1, len(chains), -1, 2)
    return Chains(listed[..., 0], listed[..., 1])


def _goes_on(chain, max_mention_length: int) -> list[tuple[int, int]]:
    """List who a next token may be about, and how many more tokens that goes on."""
    entity, remaining = chain[-1] if chain else (0, 0)
    if remaining:
        return [(entity, remaining - 1)]
    entities = 1 + max((e for e, _ in chain), default=0)
    lengths = range(max_mention_length)
    return [(0, 0), *((e, more) for e in range(1, entities + 1) for more in lengths)]
