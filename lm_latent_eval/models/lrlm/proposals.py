"""Proposals of segmentations: the posterior, left to right, or all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.lrlm.latents import (
    Encoded,
    Everything,
    Readings,
    RelationState,
    after_readings,
    goes_on,
    tempered,
)
from lm_latent_eval.models.lrlm.lattice import Lattice
from lm_latent_eval.models.lrlm.steps import (
    ReadingSteps,
    Route,
    Standing,
    log_prob_readings,
)
from lm_latent_eval.models.no_latents import Unmoved
from lm_latent_eval.text.batch import TokenBatch

if TYPE_CHECKING:
    from lm_latent_eval.models.lrlm.modeling import LRLM


@dataclass(frozen=True)
class Summation:
    """All readings as one latent: what ``exact`` takes for a proposal.

    It reads nothing, so that texts are encoded once, by the model.
    """

    name = "sum"

    def encode(self, batch: TokenBatch, after: Unmoved | None = None) -> TokenBatch:
        """Return the piece as it is."""
        return batch

    def sample(
        self, batch: TokenBatch, uniforms: Uniforms, num_samples: int
    ) -> Draws[Everything]:
        """Draw everything, K times, with log q = 0."""
        zeros = batch.unknown_log_prob.new_zeros(len(batch.length), num_samples)
        return Draws(Everything(zeros.new_empty(*zeros.shape, 0).long()), zeros)

    def beam(
        self, batch: TokenBatch, width: int, score: Tensor | None = None
    ) -> Beam[Everything]:
        """Return the one latent there is."""
        zeros = batch.unknown_log_prob.new_zeros(len(batch.length), 1)
        return Beam(
            Everything(zeros.new_empty(*zeros.shape, 0).long()), zeros, zeros.long()
        )

    def advance(self, batch: TokenBatch, latents: Everything) -> Unmoved:
        """Return the state after the piece, which is none."""
        return Unmoved()


@dataclass(frozen=True)
class Planned:
    """A piece of text, encoded, and how to go through it."""

    encoded: Encoded
    way: Callable[[Lattice], Route]
    temperature: float

    @property
    def batch(self) -> TokenBatch:
        return self.encoded.batch

    @cached_property
    def route(self) -> Route:
        """The way through what everything costs, on the host."""
        return self.way(tempered(self.encoded.lattice, self.temperature))


@dataclass(frozen=True)
class RouteProposal(StepProposal[Planned, Readings, Standing]):
    """q(z | x) of readings that follow a route through the lattice."""

    def drawn_steps(self, encoded: Planned) -> ReadingSteps:
        """Return the steps, which are drawn and searched alike."""
        piece = encoded.encoded
        agrees = goes_on(piece).all(-1)
        return ReadingSteps(encoded.route, piece.topics, piece.state, agrees)

    searched_steps = drawn_steps

    def histories(self, encoded: Planned) -> int:
        """Return how many readings of a text a piece follows."""
        return encoded.encoded.state.topic.shape[1]

    def latents(
        self, encoded: Planned, found: Sampled[Standing] | Found[Standing]
    ) -> Readings:
        return Readings(*found.columns)

    def log_prob(self, encoded: Planned, readings: Readings) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        readings, piece = Readings(*fetched(*readings)), encoded.encoded
        log_q = log_prob_readings(encoded.route, piece.state, readings)
        return sent(log_q, piece.value.device)


@dataclass(frozen=True)
class Adapted(RouteProposal):
    """q(z | x) from left to right: p's costs, and what follows as if it were words."""

    model: LRLM
    temperature: float
    name = "adapted"

    def encode(self, batch: TokenBatch, after: RelationState | None = None) -> Planned:
        """Read a piece of text as the model does."""
        encoded = self.model.encode(batch, after)
        return Planned(encoded, Route.plain, self.temperature)

    def encode_again(
        self, planned: Planned, batch: TokenBatch, after: RelationState | None
    ) -> Planned:
        """Return what was read, after some of the readings that it was read after."""
        encoded = planned.encoded
        encoded = replace(encoded, batch=batch, state=after or encoded.state)
        return replace(planned, encoded=encoded)

    def sample_from(
        self, encoded: Planned, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws[Readings], Tensor]:
        """Draw K readings a text, which continue those histories, (B, K).

        They are drawn on the host, which asks for what all of them cost in one wait.
        """
        costs = encoded.encoded.costs
        word, score, origin = fetched(costs.word, costs.score, origin)
        here = replace(encoded.encoded, costs=replace(costs, word=word, score=score))
        return super().sample_from(replace(encoded, encoded=here), uniforms, origin)

    def advance(self, planned: Planned, readings: Readings) -> RelationState:
        """Return the state after the encoded piece."""
        return after_readings(planned.encoded, readings)


@dataclass(frozen=True)
class Posterior(RouteProposal):
    """q(z | x) = p(z | x), by backward sums: every importance weight is p(x)."""

    left_to_right: Adapted
    name = "posterior"

    def encode(self, batch: TokenBatch) -> Planned:
        """Read whole texts as the model does."""
        encoded = self.left_to_right.model.encode(batch)
        return Planned(encoded, Route.exact, self.left_to_right.temperature)
