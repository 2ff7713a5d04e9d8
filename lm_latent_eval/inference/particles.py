"""Weighted latents of a text that is read piece by piece.

A left-to-right model stops after any piece and goes on, so a context is read once for
all of its continuations, and a text of any length fits into the memory of one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.text.batch import TokenBatch

PIECE = 256
"""Tokens read at a time by models that can stop and go on."""


@dataclass(frozen=True)
class Particles:
    """B texts with K weighted latents each, and where p and q stand."""

    model_state: Any
    proposal_state: Any
    log_w: Tensor
    """Log-weights so far in nats, (B, K) float64: of importance samples
    log p(x, z) - log q(z | x), of a beam log p(x, z)."""
    log_q: Tensor
    """log q(z | x) so far in nats, (B, K) float64; of a beam its ``score``."""

    @classmethod
    def begin(cls, batch_size: int, device: torch.device | str) -> Particles:
        """Return B texts of which nothing has been read."""
        zeros = torch.zeros(batch_size, 1, dtype=torch.float64, device=device)
        return cls(None, None, zeros, zeros)

    def select(self, index: Tensor) -> Particles:
        """Pick texts."""
        return Particles(
            self.model_state.select(index),
            self.proposal_state.select(index),
            self.log_w[index],
            self.log_q[index],
        )


def pieces(batch: TokenBatch) -> Iterator[tuple[int, TokenBatch]]:
    """Cut a batch into pieces of at most ``PIECE`` tokens, each with its start."""
    for start in range(0, max(batch.targets.shape[1], 1), PIECE):
        yield start, batch.piece(start, start + PIECE)


def next_token(model: Any, inputs: Tensor, particles: Particles) -> Tensor:
    """Predict the next token of each text from its weighted latents.

    Args:
        model: A left-to-right latent LM that predicts.
        inputs: The last token of each text, (B,).
        particles: The texts so far.

    Returns:
        Log-probabilities in nats, (B, number of words).
    """
    tokens = inputs[:, None]
    batch = TokenBatch(
        tokens,
        torch.zeros_like(tokens),
        torch.ones_like(inputs),
        torch.zeros_like(tokens, dtype=torch.float64),
    )
    encoded = model.encode(batch, particles.model_state)
    log_p: Tensor = model.next_token(encoded, particles.log_w)
    return log_p
