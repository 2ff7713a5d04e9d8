"""Beam search over the topics of a text's words."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import Beam


def best_topics(
    step: Callable[[int, Tensor], Tensor],
    counts: Tensor,
    inside: Tensor,
    width: int,
    score: Tensor,
) -> Beam[Tensor]:
    """Keep the ``width`` best distinct beginnings after every word.

    Args:
        step: Token and counts of K latents (B, K, N) -> what each topic adds, nats,
            (B, K, N).
        counts: Topics of the text so far, (B, K, N).
        inside: Which places hold a token, (B, T).
        width: Latents to keep, at most.
        score: Of the latents so far, (B, K); ``-inf``: there is none.

    Returns:
        The latents, (B, W, T); exact if no text has more than ``width``.
    """
    batch, num_topics = len(counts), counts.shape[-1]
    counts = counts.expand(-1, score.shape[1], -1)
    score, origin = score.topk(min(width, score.shape[1]), -1)
    counts = _rows(counts, origin)
    topics = origin.new_zeros(batch, score.shape[1], inside.shape[1])
    # Past its end a text goes on in one way.
    past = widened(torch.full((num_topics,), -torch.inf, device=score.device))
    past[0] = 0.0
    for t in range(inside.shape[1]):
        here = inside[:, t, None, None]
        options = torch.where(here, step(t, counts), past) + score[..., None]
        options = options.flatten(1)
        score, best = options.topk(min(width, options.shape[1]), -1)
        parent, topic = best // num_topics, best % num_topics
        topic = topic.masked_fill(~here[..., 0], 0)
        topics, counts = _rows(topics, parent), _rows(counts, parent)
        origin = origin.gather(1, parent)
        topics[..., t] = topic
        counts = counts.scatter_add(
            2, topic[..., None], widened(here).expand(*topic.shape, 1)
        )
    return Beam(topics, score, origin)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Pick latents of each text: (B, K, ...), (B, K') -> (B, K', ...)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
