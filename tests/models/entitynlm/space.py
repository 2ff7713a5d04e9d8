"""Every entity chain over a text of a few tokens, by listing."""

from __future__ import annotations

from functools import cache

import torch

from lm_latent_eval.models.entitynlm.latents import Chains


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
