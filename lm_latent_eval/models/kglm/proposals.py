"""Proposals of walks: trained networks, or p's conditional with a twisting function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Draws, Uniforms
from lm_latent_eval.models.kglm.latents import Encoded, KGLMState, NextStep, Walks
from lm_latent_eval.models.kglm.network import Trunk
from lm_latent_eval.models.kglm.steps import (
    WalkSteps,
    log_nodes,
    log_prob_walks,
    moved,
    resampled,
)
from lm_latent_eval.models.kglm.twisting import twisted_walks
from lm_latent_eval.text.batch import TokenBatch

if TYPE_CHECKING:
    from lm_latent_eval.models.kglm.modeling import KGLM


@dataclass(frozen=True)
class KGLMProposal(StepProposal[Encoded, Walks, Tensor]):
    """q(z | x): walks over the scores of a trunk, over possible choices only.

    A peeking proposal reads each token before it decides on its latent, so exactly one
    token more than p; a smoothing one reads to the end of the piece of text at hand.
    """

    model: KGLM
    name: str
    trunk: Trunk
    reads_target: bool
    looks_ahead: bool
    temperature: float

    def encode(self, batch: TokenBatch, after: KGLMState | None = None) -> Encoded:
        """Read the text and score every decision of a walk."""
        encoded = self._read(batch, after)
        walk = encoded.walk
        if self.trunk.matching is not None:
            twist = self.trunk.matching(*batch.on_host, self.model.knowledge)
            walk = replace(walk, twist=twist)
        if self.temperature != 1.0:
            walk = walk.scaled(1.0 / self.temperature)
        return replace(encoded, walk=walk)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: KGLMState | None
    ) -> Encoded:
        """Return what was read, after other walks."""
        return self.model.encode_again(encoded, batch, after)

    def _read(self, batch: TokenBatch, after: KGLMState | None) -> Encoded:
        encoded = self.model._encode(
            self.trunk,
            batch.targets if self.reads_target else batch.inputs,
            batch,
            after,
            only_possible=True,
        )
        if not self.looks_ahead:
            return encoded
        walk, search = twisted_walks(
            encoded.walk,
            batch,
            partial(self.model._log_words, encoded.text, batch),
            cutoff=self.model.config.cutoff,
            follows=after is not None,
        )
        return replace(encoded, walk=walk, search=search)

    def drawn_steps(self, encoded: Encoded) -> WalkSteps:
        """Return the steps that are drawn."""
        return self._steps(encoded, encoded.walk)

    def searched_steps(self, encoded: Encoded) -> WalkSteps:
        """Return the steps that searches go by.

        One that looks ahead ranks by log p so far and what it expects of the rest,
        whatever its temperature.
        """
        return self._steps(encoded, encoded.search or encoded.walk)

    def _steps(self, encoded: Encoded, walk: NextStep) -> WalkSteps:
        targets, length = encoded.batch.on_host
        return WalkSteps(walk, encoded.history, length, targets.shape[1])

    def histories(self, encoded: Encoded) -> int:
        """Return how many walks of a text a piece follows."""
        return encoded.history.shape[1]

    def latents(
        self, encoded: Encoded, found: Sampled[Tensor] | Found[Tensor]
    ) -> Walks:
        return Walks(*found.columns)

    def sample_from(
        self, encoded: Encoded, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws[Walks], Tensor]:
        """Draw K walks a text, which continue those histories, (B, K)."""
        draws, origin = super().sample_from(encoded, uniforms, origin)
        history = resampled(encoded.history, origin)
        log_node = log_nodes(encoded.walk, history, draws.latents)
        return replace(draws, log_q=draws.log_q + log_node), origin

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

    def advance(self, encoded: Encoded, walks: Walks) -> KGLMState:
        """Return the state after the encoded piece."""
        return encoded.after(walks)

    def token(self, encoded: Encoded, t: int, after: KGLMState | None) -> Encoded:
        """Cut out token t of an encoded piece, after the walks so far."""
        return encoded.token(t, after)

    def log_twist(self, encoded: Encoded, t: int, after: KGLMState) -> Tensor:
        """Guess log p(tokens t and on | walks so far), nats, (B, K) float64."""
        return encoded.log_twist(t, after)
