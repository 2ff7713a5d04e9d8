"""Metropolis-Hastings moves of entity chains: one decision resampled.

A token outside mentions, or the first of one, gets another decision: nobody, or an
entity among the others of the text or a new one, for some tokens. A mention may grow
over tokens that mention nobody, and leaves such tokens where it shrinks. How the new
decision is drawn does not depend on the old one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.gibbs import draw_choice
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.entitynlm.chain import NOBODY, Chains


def moved(
    chains: Chains, length: Tensor, longest: int, uniforms: Uniforms
) -> tuple[Chains, Tensor]:
    """Take one decision of each chain anew.

    All is on the host.

    Args:
        chains: K a text, (B, K, T).
        length: Tokens of each text, (B,).
        longest: M, the most tokens of a mention.
        uniforms: As ``Moves`` has them.

    Returns:
        Chains, and log R(z | z') - log R(z' | z) in nats, (B, K) float64. A chain stays
        as it is where the token has nothing to decide, or a mention has no room.
    """
    entity, remaining = chains
    places = torch.arange(entity.shape[-1], device=entity.device)
    which, what = uniforms(0), uniforms(1)
    t = (which[..., 0] * length[:, None]).long()[..., None]
    free = F.pad(remaining, (1, 0)).gather(2, t)[..., 0] == 0

    # What there is without this decision.
    old = entity.gather(2, t)[..., 0]
    old_more = remaining.gather(2, t)[..., 0]
    mine = (places >= t) & (places <= t + old_more[..., None])
    others = _by_first_mention(entity.masked_fill(mine, NOBODY))
    left = remaining.masked_fill(mine, 0)
    count = others.amax(-1)

    # What there is instead: tokens of a mention halve in probability.
    log_more = torch.arange(longest, device=entity.device) * -math.log(2)
    log_more = widened(log_more).log_softmax(-1)
    some = what[..., 0] < 0.5
    drawn = (what[..., 1] * (count + 1)).long() + 1
    more = draw_choice(log_more.expand(*count.shape, -1), what[..., 2])
    more = more.masked_fill(~some, 0)
    here = (places >= t) & (places <= t + more[..., None])
    inside = places < length[:, None, None]
    room = ~((here & inside) & (others != NOBODY)).any(-1)
    going_on = (here & inside & some[..., None]).long()
    entity = torch.where(going_on > 0, drawn[..., None], others)
    countdown = more[..., None] + t - places
    remaining = torch.where(going_on > 0, countdown, left)

    log_some = log_more[more] - widened(count + 1).log()
    log_old = log_more[old_more] - widened(count + 1).log()
    log_ratio = log_old.masked_fill(old == NOBODY, 0.0) - log_some.masked_fill(
        ~some, 0.0
    )
    moves = free & room
    chosen = Chains(_by_first_mention(entity), remaining)
    kept = [
        torch.where(moves[..., None], new, before)
        for new, before in zip(chosen, chains, strict=True)
    ]
    return Chains(*kept), log_ratio.masked_fill(~moves, 0.0)


def _by_first_mention(entity: Tensor) -> Tensor:
    """Number entities by their first mention from 1, (B, K, T)."""
    size = entity.shape[-1]
    places = torch.arange(size, device=entity.device).expand_as(entity)
    first = entity.new_full((*entity.shape[:2], size + 2), size)
    first = first.scatter_reduce(2, entity, places, "amin")
    first[..., NOBODY] = -1
    number = first.argsort(stable=True).argsort(stable=True)
    return number.gather(2, entity)
