"""Beam marginalization: log of the sum of p(x, z) over what beam search finds."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, widened
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.interface import Estimator, Weighted
from lm_latent_eval.inference.models import LM, P, Q, Sampler, searching
from lm_latent_eval.inference.particles import (
    Particles,
    as_particles,
    encode,
    encode_again,
    fingerprint,
    pieces,
)
from lm_latent_eval.latent import Beam, Latents
from lm_latent_eval.text.batch import TokenBatch


class SearchingEstimator(Estimator):
    """What estimators share that search: long texts are read piece by piece."""

    searches: ClassVar[bool] = True

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Weigh latents of whole texts: see ``Estimator``."""
        encoded = encode(model, proposal, batch)
        if encoded is not None:
            return self.weigh(model, proposal, batch, keys, encoded)
        begin = Particles.begin(len(keys), batch.inputs.device)
        starts = [0] * len(keys)
        return self.extend(model, proposal, batch, keys, starts, begin).log_w

    @abstractmethod
    def weigh(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        encoded: tuple[P, Q],
    ) -> Tensor:
        """Weigh latents of texts that p and q have read as a whole."""


@dataclass(frozen=True)
class BeamMarginalization(SearchingEstimator):
    """The k distinct latents of high q, summed: a strict lower bound of p(x).

    Source: Logan et al. (2020), section 5.
    """

    name: ClassVar[str] = "beam"
    how: ClassVar[str] = (
        "beam marginalization: latents found by the {proposal} proposal are summed"
    )
    bound: ClassVar[Bound] = Bound.STRICT_LOWER
    seeded: ClassVar[bool] = False
    num_samples: int
    """k, the width of the beam."""

    @property
    def held(self) -> int:
        """Latents of a text that are held at once: all."""
        return self.num_samples

    def weigh(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        encoded: tuple[P, Q],
    ) -> Tensor:
        """Return log p(x, z) of the latents found, (B, k) float64; -inf: none."""
        return self.search(model, proposal, *encoded)[0].log_w

    def search(
        self, model: LM[P], proposal: Sampler[Q], p: P, q: Q
    ) -> tuple[Particles, Latents]:
        """Find latents of whole texts, without states, which nothing needs any more.

        Args:
            model: A latent LM.
            proposal: What the search goes by.
            p: The texts as the model encodes them.
            q: The texts as the proposal does.

        Returns:
            The latents as particles, and as they are.
        """
        beam = self.found(proposal, q)
        return self.weighed(model, p, beam), beam.latents

    def found(self, proposal: Sampler[Q], q: Q) -> Beam[Latents]:
        """Find latents of whole texts."""
        return searching(proposal).beam(q, self.num_samples)

    @staticmethod
    def weighed(model: LM[P], p: P, beam: Beam[Latents]) -> Particles:
        """Return what was found of whole texts as particles."""
        log_p = widened(model.log_joint(p, beam.latents))
        log_p = log_p.masked_fill(beam.score.isneginf(), -torch.inf)
        path = fingerprint(beam.latents, torch.zeros_like(beam.origin))
        return Particles(None, None, log_p, beam.score, path)

    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
    ) -> Particles:
        """Read on: continue the beams of the texts so far over some more tokens."""
        particles = as_particles(after)
        for _, piece in pieces(batch):
            p_state, q_state = particles.model_state, particles.proposal_state
            q = proposal.encode(piece, q_state)
            beam = searching(proposal).beam(q, self.num_samples, particles.log_q)
            if p_state is not None and q_state is not None:
                (origin,) = fetched(beam.origin)
                p_state, q_state = p_state.resample(origin), q_state.resample(origin)
                q = encode_again(proposal, q, piece, q_state)
            p = particles.encoded(model, piece, p_state)
            log_p = widened(model.log_joint(p, beam.latents))
            log_p = log_p + particles.log_w.gather(1, beam.origin)
            particles = Particles(
                model.advance(p, beam.latents),
                proposal.advance(q, beam.latents),
                log_p.masked_fill(beam.score.isneginf(), -torch.inf),
                beam.score,
                fingerprint(beam.latents, particles.path.gather(1, beam.origin)),
            )
        return particles

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the bound of one text's log p(x), from log p(x, z) of shape (k,)."""
        bound = Estimate.from_beam(log_w, num_tokens=num_tokens)
        # A beam may have fewer places than k: it depends on its company.
        return replace(bound, num_samples=self.num_samples)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Return the difference of two bounds, which is no bound itself."""
        whole = Estimate.from_beam(log_w, num_tokens=num_tokens)
        return Estimate(
            log_evidence=whole.log_evidence - log_w_prefix.logsumexp(-1).item(),
            stderr=None,
            draws_stderr=0.0,
            effective_sample_size=None,
            pareto_k=None,
            num_samples=self.num_samples,
            num_tokens=num_tokens,
            bound=Bound.NONE,
            estimator=self.name,
        )
