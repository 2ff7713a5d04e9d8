"""Metropolis-Hastings moves of walks: the decision of one token resampled.

Tokens that go on with the mention follow it to its new node. The decisions after them
are kept; where they are none any more, p is zero and the walk stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.kglm.steps import Mention, Rows, Walks
from lm_latent_eval.models.kglm.unfolding import windows
from lm_latent_eval.models.kglm.walk import NextStep


def moved(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor, uniforms: Uniforms
) -> tuple[Walks, Tensor]:
    """Draw one decision of each walk anew.

    Args:
        walk: The distribution to draw from.
        history: Nodes before the texts, on the host, (B, K, cutoff).
        walks: K a text, on the host, (B, K, T).
        length: Tokens of each text, on the host, (B,).
        uniforms: As ``Moves`` has them.

    Returns:
        Walks on the host, and log R(z | z') - log R(z' | z) in nats, (B, K) float64,
        where the scores are.
    """
    batch, _samples, num_tokens = walks.node.shape
    t = (uniforms(0)[..., 0] * length[:, None]).long()
    text = torch.arange(batch)[:, None].expand_as(t)
    behind = windows(history, walks.node)
    window = behind.gather(2, t[..., None, None].expand(-1, -1, 1, behind.shape[-1]))
    rows = Rows((text * num_tokens + t).flatten(), window.flatten(0, 2))
    mention, node, log_new = walk.sample(rows, uniforms(1).flatten(0, 1))
    log_new = log_new + walk.log_node(rows, mention, node)
    at = t[..., None]
    old = [part.gather(2, at).flatten() for part in walks]
    log_old = walk.log_prob(rows, *old)

    new_mention = walks.mention.scatter(2, at, mention.view(*t.shape, 1))
    begins = (walks.mention != Mention.CONTINUE).long().cumsum(-1)
    places = torch.arange(num_tokens)
    follows = (places > at) & (begins == begins.gather(2, at))
    follows = follows | (places == at)
    new_node = torch.where(follows, node.view(*t.shape, 1), walks.node)
    log_ratio = widened(log_old - log_new).view_as(t)
    return Walks(new_mention, new_node), log_ratio
