"""Where walks come from: trained trunks, or p's conditional tilted by what follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, widened
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.kglm.encoding import Encoded, KGLMState
from lm_latent_eval.models.kglm.joint import KGLMJoint
from lm_latent_eval.models.kglm.look_ahead import look_ahead
from lm_latent_eval.models.kglm.moves import moved
from lm_latent_eval.models.kglm.steps import Walks
from lm_latent_eval.models.kglm.trunk import Trunk
from lm_latent_eval.models.kglm.unfolding import (
    beam_walks,
    log_prob_walks,
    sample_walks,
)
from lm_latent_eval.models.proposals import Strengths, factors
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class KGLMProposal:
    """q(z | x): walks over the scores of a trunk, over possible choices only.

    A peeking proposal reads each token before it decides on its latent, so exactly one
    token more than p; a smoothing one reads to the end of the piece of text at hand.
    """

    model: KGLMJoint
    name: str
    trunk: Trunk
    reads_target: bool
    looks_ahead: bool
    temperature: float
    strengths: Strengths
    """``scores``; of one that looks ahead ``look_ahead``, of one that matches names
    the weights of ``AliasMatching``."""

    def encode(self, batch: TokenBatch, after: KGLMState | None = None) -> Encoded:
        """Read the text and score every decision of a walk."""
        return self.weighed(self.read(batch, after))

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: KGLMState | None
    ) -> Encoded:
        """Return what was read, after other walks."""
        return self.model.encode_again(encoded, batch, after)

    def read(self, batch: TokenBatch, after: KGLMState | None = None) -> Encoded:
        """Do what no strength changes."""
        encoded = self.model._encode(
            self.trunk,
            batch.targets if self.reads_target else batch.inputs,
            batch,
            after,
            only_possible=True,
        )
        if not self.looks_ahead:
            return encoded
        walk = look_ahead(
            encoded.walk,
            batch,
            partial(self.model._log_words, encoded.text, batch),
            cutoff=self.model.config.cutoff,
            follows=after is not None,
        )
        return replace(encoded, walk=walk)

    def weighed(self, encoded: Encoded) -> Encoded:
        """Give what was read its strengths."""
        walk, batch = encoded.walk, encoded.batch
        if self.trunk.matching is not None:
            tilt = self.trunk.matching(
                *batch.on_host, self.model.knowledge, self.strengths
            )
            walk = replace(walk, tilt=tilt)
        by = factors(self.strengths, self.temperature)
        if by is None:
            return replace(encoded, walk=walk)
        return replace(
            encoded,
            walk=walk.weighed(*by),
            search=walk if self.looks_ahead else None,
        )

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[Walks]:
        """Draw K walks a text, continuing the K histories if there are any."""
        batch, samples, cutoff = encoded.history.shape
        if samples not in (1, num_samples):
            raise ValueError(
                f"{samples} histories cannot continue in {num_samples} walks"
            )
        history = encoded.history.expand(batch, num_samples, cutoff)
        encoded = replace(encoded, history=history)
        stay = torch.arange(num_samples).expand(batch, -1)
        return self.sample_from(encoded, uniforms, stay)[0]

    def sample_from(
        self, encoded: Encoded, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws[Walks], Tensor]:
        """Draw K walks a text, which continue those of the K histories, (B, K)."""
        (targets, length), history = encoded.batch.on_host, encoded.history
        walks, log_q, origin = sample_walks(
            encoded.walk, history, length, uniforms, targets.shape[1], origin
        )
        return Draws(walks, log_q), origin

    def log_prob(self, encoded: Encoded, walks: Walks) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        history, walks = encoded.on_host(walks)
        _, length = encoded.batch.on_host
        return widened(log_prob_walks(encoded.walk, history, walks, length)).sum(-1)

    def moved(
        self, encoded: Encoded, walks: Walks, uniforms: Uniforms
    ) -> tuple[Walks, Tensor]:
        """Draw one decision of each walk anew."""
        _, length = encoded.batch.on_host
        return moved(encoded.walk, *encoded.on_host(walks), length, uniforms)

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Walks]:
        """Find up to ``width`` distinct walks of high q, continuing those so far.

        One that looks ahead ranks by log p so far and what it expects of the rest,
        whatever its strengths and its temperature.
        """
        if score is None:
            score = torch.zeros(encoded.history.shape[:2], dtype=torch.float64)
        score, (targets, length) = fetched(score)[0].double(), encoded.batch.on_host
        walk, num_tokens = encoded.search or encoded.walk, targets.shape[1]
        return Beam(
            *beam_walks(walk, encoded.history, score, length, num_tokens, width)
        )

    def advance(self, encoded: Encoded, walks: Walks) -> KGLMState:
        """Return the state after the encoded piece."""
        return encoded.after(walks)

    def token(self, encoded: Encoded, t: int, after: KGLMState | None) -> Encoded:
        """Cut out token t of an encoded piece, after the walks so far."""
        return encoded.token(t, after)

    def log_ahead(self, encoded: Encoded, t: int, after: KGLMState) -> Tensor:
        """Guess log p(tokens t and on | walks so far), nats, (B, K) float64."""
        return encoded.log_ahead(t, after)
