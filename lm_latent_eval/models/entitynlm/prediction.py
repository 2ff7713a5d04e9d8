"""Next-word distribution from weighted histories."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.entitynlm.chain import Steps
from lm_latent_eval.models.entitynlm.memory import EntityState
from lm_latent_eval.models.entitynlm.unfolding import Unfolding, mentions

NEGLIGIBLE = 1e-6
"""Probability of contexts that a next-token distribution may leave out."""


def weighted_contexts(
    steps: Steps, state: EntityState, log_w: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the contexts of each text's next token.

    The next token mentions nobody, and keeps the context; or goes on with a mention; or
    begins one, of a known entity or of a new one. How long does not matter yet.

    Args:
        steps: Of the text; its first token is the one to predict.
        state: K histories of B texts.
        log_w: Their log-weights in nats, (B, K).

    Yields:
        Probabilities (N,) and contexts (N, D) of one text.
    """
    batch, histories = log_w.shape
    place = torch.arange(batch, device=log_w.device) * steps.num_tokens
    walk = Unfolding.after(state, histories)
    mentioned, most = mentions(state.entity.expand(batch, histories).flatten())
    walk = walk.roomy(most)
    walk.settle(steps, sent(mentioned, place.device), place)
    memory = walk.memory
    log_slot = steps.log_slot(place, memory.slots, memory.last, walk.count)
    log_mention = steps.log_mention(place, batch * histories)
    log_prob = torch.cat([log_mention[:, :1], log_mention[:, 1:] + log_slot], 1)
    inside = (walk.remaining > 0)[:, None]
    same = torch.full_like(log_prob, -torch.inf)
    same = same.scatter(1, 1 + walk.entity[:, None], 0.0)
    log_prob = torch.where(inside, same, log_prob)
    old = state.context.expand(batch, histories, -1).flatten(0, 1)[:, None]
    contexts = torch.cat([old, memory.slots], 1)

    log_weight = log_w.log_softmax(-1).to(log_prob.dtype).flatten()
    prob = (log_prob + log_weight[:, None]).exp()
    for weight, context in zip(prob.chunk(batch), contexts.chunk(batch), strict=True):
        keep = not_negligible(weight.flatten())
        yield weight.flatten()[keep], context.flatten(0, 1)[keep]


def not_negligible(mass: Tensor) -> Tensor:
    """Return the places of all but the smallest numbers of negligible sum, (N,)."""
    sorted_mass, order = mass.sort(descending=True)
    rest = mass.sum() - sorted_mass.cumsum(0) + sorted_mass
    return order[(rest > NEGLIGIBLE) & (sorted_mass > 0)].sort().values
