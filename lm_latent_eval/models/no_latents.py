"""The trivial proposal of models without latents."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class Unmoved:
    """The state of what reads nothing."""

    def select(self, index: Tensor) -> Unmoved:
        return self

    def resample(self, index: Tensor) -> Unmoved:
        return self


@dataclass(frozen=True)
class NoLatents:
    """q of the empty latent, 1; it reads nothing, so that only the model does."""

    name = "none"

    def encode(self, batch: TokenBatch, after: Unmoved | None = None) -> TokenBatch:
        """Return the piece as it is."""
        return batch

    def sample(
        self, batch: TokenBatch, uniforms: Uniforms, num_samples: int
    ) -> Draws[Tensor]:
        """Draw the empty latent K times, with log q = 0."""
        zeros = wide_zeros((len(batch.length), num_samples), batch.length.device)
        return Draws(zeros.new_empty(*zeros.shape, 0).long(), zeros)

    def log_prob(self, batch: TokenBatch, latents: Tensor) -> Tensor:
        """Return log q = 0 of K empty latents, (B, K)."""
        return wide_zeros((len(batch.length), latents.shape[1]), batch.length.device)

    def beam(
        self, batch: TokenBatch, width: int, score: Tensor | None = None
    ) -> Beam[Tensor]:
        """Return the one latent there is."""
        zeros = wide_zeros((len(batch.length), 1), batch.length.device)
        return Beam(zeros.new_empty(*zeros.shape, 0).long(), zeros, zeros.long())

    def advance(self, batch: TokenBatch, latents: Tensor) -> Unmoved:
        """Return the state after the piece, which is none."""
        return Unmoved()
