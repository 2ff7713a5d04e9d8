"""Every entity chain over a text of a few tokens, by listing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from lm_latent_eval.models.entitynlm.latents import Chains

Chain = tuple[tuple[int, int], ...]
"""Of each token who it is about, and how many more tokens that goes on."""


def longer(chain: Chain, max_mention_length: int) -> list[Chain]:
    """Return every chain of one token more: nobody, then entities by lengths."""
    entity, remaining = chain[-1] if chain else (0, 0)
    if remaining:
        return [(*chain, (entity, remaining - 1))]
    entities = max((e for e, _ in chain), default=0)
    new = [
        (e, more) for e in range(1, entities + 2) for more in range(max_mention_length)
    ]
    return [(*chain, last) for last in [(0, 0), *new]]


def together(chains: Sequence[Chain]) -> Chains:
    """Return chains of one length as tensors, (1, K, T)."""
    listed = torch.tensor(chains).view(1, len(chains), -1, 2)
    return Chains(listed[..., 0], listed[..., 1])


@cache
def every_chain(num_tokens: int, max_mention_length: int) -> Chains:
    """List all chains, (1, K, T), depth first."""
    found: list[Chain] = []

    def unfold(chain: Chain) -> None:
        if len(chain) == num_tokens:
            found.append(chain)
            return
        for one_more in longer(chain, max_mention_length):
            unfold(one_more)

    unfold(())
    return together(found)
