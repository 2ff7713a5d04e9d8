"""Proposals from step distributions: sampling and beam search by the engine.

``DrawnProposal`` can only be drawn from; ``StepProposal`` lists its choices as well.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference import steps
from lm_latent_eval.inference.cuts import Best, Cut
from lm_latent_eval.inference.steps import DrawSteps, Found, Sampled, Steps
from lm_latent_eval.latent import Beam, Draws, Proposal, Uniforms


@dataclass(frozen=True)
class Thinning:
    """Latents that a search has kept, K of each of B texts, distinct in each group."""

    beam: Beam
    log_f: Tensor
    """Log of what p(x, z) is multiplied by in a sum, nats, (B, K) float64."""
    cut: Tensor
    """Whether anything was left out of a group, (B, R) bool."""


class DrawnProposal(Proposal):
    """q(z | x) that draws step by step; see ``inference.steps``."""

    on_host: ClassVar[bool] = False
    """Whether its latents are wanted on the host, wherever they were decided."""

    @abstractmethod
    def drawn_steps(self, encoded: Any) -> DrawSteps:
        """Return the steps that are drawn."""

    @abstractmethod
    def histories(self, encoded: Any) -> int:
        """Return how many histories of a text a piece follows; 1 at the beginning."""

    @abstractmethod
    def latents(self, encoded: Any, found: Sampled | Found) -> Any:
        """Return what was drawn or found as latents."""

    def sample(self, encoded: Any, uniforms: Uniforms, num_samples: int) -> Draws:
        """Draw K latents a text, continuing the K histories if there are any.

        Raises:
            ValueError: If there is another number of histories, and more than one.
        """
        origin = own_histories(self.histories(encoded), num_samples)
        origin = origin.expand(len(encoded.batch.length), -1)
        return self.sample_from(encoded, uniforms, origin)[0]

    def sample_from(
        self, encoded: Any, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws, Tensor]:
        """Draw K latents a text, which continue those histories, (B, K)."""
        drawn = self.drawn_steps(encoded)
        return self.draws_of(encoded, steps.sampled(drawn, uniforms, origin))

    def draws_of(self, encoded: Any, sampled: Sampled) -> tuple[Draws, Tensor]:
        """Return what was drawn, and which histories it continues, on the host."""
        columns = sampled.columns if self.on_host else ()
        origin, *here = fetched(sampled.origin, *columns)
        sampled = sampled._replace(origin=origin)
        if self.on_host:
            sampled = sampled._replace(columns=tuple(here))
        log_q = sent(sampled.log_q, encoded.batch.targets.device)
        latents = self.latents(encoded, sampled)
        log_p = self.known_log_p(encoded, sampled, latents)
        return Draws(latents, log_q, log_p), origin

    def known_log_p(
        self,
        encoded: Any,
        found: Sampled | Found,
        latents: Any,
    ) -> Tensor | None:
        """Return log p(x, z_k) of latents that were made last, where it is known."""
        return None


def own_histories(histories: int, num_samples: int) -> Tensor:
    """Return which history each latent continues, (K,): its own, or the only one.

    Raises:
        ValueError: If there is another number of histories, and more than one.
    """
    if histories not in (1, num_samples):
        raise ValueError(
            f"{histories} histories cannot continue in {num_samples} latents"
        )
    return torch.arange(num_samples).clamp_max(histories - 1)


class SearchedProposal(Proposal):
    """q(z | x) that finds latents as a cut decides."""

    widening: ClassVar[int] = 32
    """Histories of all passes of ``auto``, at most, for each sample asked for."""
    checks: bool = False
    """Whether groups that check are ranked by another look-ahead, as ``with_checks``
    asks for."""

    def with_checks(self) -> Self:
        """Return one that looks ahead in another way as well, for groups that check.

        This one, if there is no other way.
        """
        return self

    def beam(self, encoded: Any, width: int, score: Tensor | None = None) -> Beam:
        """Find up to ``width`` distinct latents, continuing those so far."""
        return self.search(encoded, Best(width), score).beam

    @abstractmethod
    def search(self, encoded: Any, cut: Cut, score: Tensor | None = None) -> Thinning:
        """Find distinct latents, continuing those so far, as a cut decides.

        Args:
            encoded: A piece.
            cut: The rule that chooses which go on after every step.
            score: Of the latents so far, (B, K) nats; None: there are none.
        """


class StepProposal(DrawnProposal, SearchedProposal):
    """q(z | x) that says what its steps are, choice by choice."""

    @abstractmethod
    def searched_steps(self, encoded: Any) -> Steps:
        """Return the steps that searches go by."""

    def search(self, encoded: Any, cut: Cut, score: Tensor | None = None) -> Thinning:
        found = steps.searched(self.searched_steps(encoded), cut, score)
        if self.on_host:
            found = found._replace(columns=fetched(*found.columns))
        score, origin, log_f, was_cut = (
            sent(x, encoded.batch.targets.device)
            for x in (found.score, found.origin, found.log_f, found.cut)
        )
        latents = self.latents(encoded, found)
        log_p = self.known_log_p(encoded, found, latents)
        beam = Beam(latents, score, origin, log_p, was_cut.any(1))
        return Thinning(beam, log_f, was_cut)

    def recombining_beam(
        self, encoded: Any, width: int, score: Tensor | None = None
    ) -> Beam:
        """Find latents, of which one stands for all that go on alike."""
        found = self.search(encoded, Best(width, recombines=True), score)
        return replace(found.beam, log_f=found.log_f)
