"""Importance sampling: log w_k = log p(x, z_k) - log q(z_k | x), z_k drawn from q."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    Weighted,
)
from lm_latent_eval.inference.particles import (
    PIECE,
    Particles,
    as_particles,
    encode,
    fingerprint,
    in_pieces,
    log_joint,
)
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import Draws, LatentLM

DECISIONS = 1 << 21
"""Latent decisions (texts x samples x tokens) held at a time."""
ROWS = 1 << 16
"""Latents (texts x samples) drawn side by side."""


@dataclass(frozen=True)
class ImportanceSampling(Estimator):
    """K independent draws a text; unbiased for p(x), nested in K."""

    name: ClassVar[str] = "is"
    how: ClassVar[str] = (
        "importance sampling from the {proposal} proposal at temperature "
        "{temperature:g}, seed {seed}"
    )
    num_samples: int

    @property
    def kept(self) -> int:
        return self.num_samples

    def log_weights(self, texts: Texts) -> Tensor:
        """Return the log-weights of whole texts in nats, (B, K) float64."""
        return self.draw(texts, encode(texts))[0]

    def draw(
        self, texts: Texts, encoded: tuple[Any, Any] | None
    ) -> tuple[Tensor, Tensor]:
        """Return log-weights and fingerprints of whole texts' latents, (B, K).

        They are drawn in as many rounds as memory asks for, which does not change them.
        """
        batch_size, num_tokens = texts.batch.targets.shape
        begin = Particles.begin(batch_size, texts.batch.inputs.device)
        # Rounds write into one tensor: there may be a million of them.
        log_w = begin.log_w.new_empty(batch_size, self.num_samples)
        path = begin.path.new_empty(batch_size, self.num_samples)
        at_once = self.at_once(batch_size, num_tokens)
        for k in range(0, self.num_samples, at_once):
            number = min(at_once, self.num_samples - k)
            if encoded is None:
                drawn = self._round(texts, number, k, begin)
                weights, latents = drawn.log_w, drawn.path
            else:
                p, q = encoded
                draws = texts.proposal.sample(q, texts.streams(number, k), number)
                weights, latents = self.weights(texts.model, p, draws)
            log_w[:, k : k + number], path[:, k : k + number] = weights, latents
        return log_w, path

    @staticmethod
    def weights(model: LatentLM, p: Any, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return log-weights and fingerprints of whole texts' latents, (B, K)."""
        log_w = log_joint(model, p, draws) - draws.log_q
        return log_w, fingerprint(draws.latents, torch.zeros_like(log_w[:, :1]).long())

    @staticmethod
    def at_once(batch_size: int, num_tokens: int) -> int:
        """How many samples of each text are drawn in one round."""
        texts, tokens = max(1, batch_size), max(1, min(num_tokens, PIECE))
        return max(1, min(DECISIONS // (texts * tokens), ROWS // texts))

    def extend(self, texts: Texts, after: Weighted) -> Particles:
        """Read on: draw the latents of some more tokens and weigh them.

        The weights of the particles estimate the probability of the text so far as a
        prefix.
        """
        return in_pieces(texts, as_particles(after), self.read)

    def _round(
        self, texts: Texts, number: int, first: int, begin: Particles
    ) -> Particles:
        """Draw some of the latents of long texts, without their last states."""
        last = texts.batch.targets.shape[1] - PIECE

        def read(piece: Texts, before: Particles) -> Particles:
            particles = _drawn(piece, piece.streams(number, first), before)
            if any(start < last for start in piece.starts):
                return particles
            return replace(particles, model_state=None, proposal_state=None)

        return in_pieces(texts, begin, read)

    def read(self, texts: Texts, before: Particles) -> Particles:
        """Draw the latents of pieces, and weigh them."""
        return _drawn(texts, texts.streams(self.num_samples), before)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from log-weights (K,)."""
        return Estimate.from_log_weights(log_w, num_tokens=num_tokens)


def _drawn(texts: Texts, streams: Streams, before: Particles) -> Particles:
    """Go on with as many latents of pieces as there are random numbers for."""
    p = before.encoded(texts.model, texts.batch, before.model_state)
    q = texts.proposal.encode(texts.batch, before.proposal_state)
    draws = texts.proposal.sample(q, streams, streams.num_samples)
    return weighed(texts, p, q, draws, before)


def weighed(texts: Texts, p: Any, q: Any, draws: Draws, before: Particles) -> Particles:
    """Go on with latents of encoded pieces, and weigh them.

    Args:
        texts: The pieces.
        p: As the model encodes them, after ``before``.
        q: As the proposal does.
        draws: What it has drawn.
        before: The texts so far.
    """
    log_w = log_joint(texts.model, p, draws) - draws.log_q
    return Particles(
        texts.model.advance(p, draws.latents),
        texts.proposal.advance(q, draws.latents),
        before.log_w + log_w,
        before.log_q + draws.log_q,
        fingerprint(draws.latents, before.path),
    )
