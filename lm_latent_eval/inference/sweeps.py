"""Sweeps of a Gibbs sampler.

A sweep of one order that follows a distribution is reversed by a sweep of the other
order, which is all that estimators need to know of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import sent_uniforms, wide_zeros
from lm_latent_eval.inference.drawing import invert_cdf
from lm_latent_eval.inference.streams import LANES, Streams
from lm_latent_eval.latent import Conditionals, Latents

SWEEP = 1 << 32
"""Random numbers of a sweep begin at a multiple of this: texts are shorter."""


@dataclass(frozen=True)
class SweepNumbers:
    """The random numbers of sweeps: one a decision."""

    streams: Streams

    def __call__(self, sweep: int, num_tokens: int) -> Tensor:
        """Return uniforms of a sweep, (B, K, T); those of sweep 0 are for first draws.

        They are the same for a text of any padding.
        """
        blocks = -(-num_tokens // LANES)
        parts = [self.streams(sweep * SWEEP + block) for block in range(blocks)]
        return torch.cat(parts, -1)[..., :num_tokens]


def draw_choice(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw from unnormalised log-probabilities, (B, K, N) and (B, K) -> (B, K).

    The uniform numbers are on the host.
    """
    return invert_cdf(log_p.softmax(-1), sent_uniforms(uniform, log_p.device))


def redraw(
    latents: Conditionals[Latents], tokens: Iterable[int], uniforms: Tensor
) -> None:
    """Redraw the decisions of tokens in their order; ``uniforms`` are (B, K, T)."""
    for t in tokens:
        latents.decide(t, draw_choice(latents.log_p(t), uniforms[..., t]))


def log_transition(
    latents: Conditionals[Latents], to: Tensor, num_tokens: int
) -> Tensor:
    """Return the log-probability that a sweep from first to last leads to z*.

    Args:
        latents: Where it begins, K a text; they are at z* afterwards.
        to: The choices of z*, (B, K or 1, T).
        num_tokens: T.

    Returns:
        Nats, (B, K) float64.
    """
    total = wide_zeros((), to.device)
    for t in range(num_tokens):
        log_p = latents.log_p(t).log_softmax(-1)
        choice = to[..., t].expand(log_p.shape[:2])
        total = total + log_p.gather(-1, choice[..., None])[..., 0]
        latents.decide(t, choice)
    return total
