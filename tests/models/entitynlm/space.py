"""Every entity chain over a text of a few tokens, by listing."""

from __future__ import annotations

from functools import cache

import torch

from lm_latent_eval.models.entitynlm.chain import Chains


@cache
def every_chain(num_tokens: int, max_mention_length: int) -> Chains:
    """List all chains, (1, K, T), depth first: nobody, then entities by lengths."""
    found: list[list[tuple[int, int]]] = []

    def unfold(chain: list[tuple[int, int]], entities: int) -> None:
        if len(chain) == num_tokens:
            found.append(chain)
            return
        entity, remaining = chain[-1] if chain else (0, 0)
        if remaining:
            unfold([*chain, (entity, remaining - 1)], entities)
            return
        unfold([*chain, (0, 0)], entities)
        for e in range(1, entities + 2):
            for more in range(max_mention_length):
                unfold([*chain, (e, more)], max(entities, e))

    unfold([], 0)
    listed = torch.tensor(found).view(1, len(found), num_tokens, 2)
    return Chains(listed[..., 0], listed[..., 1])
