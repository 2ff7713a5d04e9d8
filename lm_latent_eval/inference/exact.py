"""Models whose likelihoods are exact: without latents, or with all of them summed.

One latent is then all there is to sum over: the empty one, or, of a model that can sum
its latents itself (``Summable``), all of them at once. A model may say so and be wrong.
So it is checked: that the latent decides nothing, or that the sum is that over a list
of latents, on prefixes of the first texts. What is not proven is the probability of one
latent, a strict lower bound.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.beam import BeamMarginalization
from lm_latent_eval.inference.interface import Estimator, Weighted
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.particles import Partial, Particles, as_particles
from lm_latent_eval.inference.trust import decides_nothing, sums_exactly
from lm_latent_eval.latent import Summable
from lm_latent_eval.text.batch import TokenBatch

_BEAM = BeamMarginalization(1)


@dataclass(frozen=True)
class Exact(Estimator):
    """log p(x) as it is: a beam of one that holds every latent."""

    name: ClassVar[str] = "exact"
    how: ClassVar[str] = "nothing is drawn: log-likelihoods are exact"
    bound: ClassVar[Bound] = Bound.EXACT
    seeded: ClassVar[bool] = False
    asked: InitVar[int] = 1
    """How many others would draw."""
    num_samples: int = field(default=1, init=False)

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Return log p(x) and the mark of ``Partial``, (B, 2) float64."""
        begin = Particles.begin(len(keys), batch.inputs.device)
        if not isinstance(model, Summable):
            unproven = not decides_nothing(proposal, batch)
            log_p = _BEAM.log_weights(model, proposal, batch, keys)
        else:
            unproven = not sums_exactly(model, proposal, batch)
            log_p = _BEAM.log_weights(model, model.summation, batch, keys)
        left_out = torch.full_like(log_p[:, 0], unproven, dtype=torch.bool)
        return Partial(replace(begin, log_w=log_p), left_out).log_w

    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
    ) -> Partial:
        begun = after if isinstance(after, Partial) else None
        particles = begun.particles if begun else as_particles(after)
        if isinstance(model, Summable):
            unproven = not sums_exactly(model, proposal, batch)
            found = _BEAM.extend(model, model.summation, batch, keys, starts, particles)
        else:
            unproven = not decides_nothing(proposal, batch)
            found = _BEAM.extend(model, proposal, batch, keys, starts, particles)
        here = torch.full_like(found.log_w[:, 0], unproven, dtype=torch.bool)
        return Partial(found, here | begun.cut if begun else here)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return log p(x) of one text; a bound where that is not proven."""
        log_p, mark = log_w.split([len(log_w) - 1, 1])
        bound = Estimate.from_beam(log_p, num_tokens=num_tokens, estimator=self.name)
        if mark.isneginf():
            return bound
        return replace(bound, stderr=0.0, bound=Bound.EXACT)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Return log p(continuation | prefix); no bound where it is not proven."""
        estimate = _BEAM.difference(log_w[:-1], log_w_prefix[:-1], num_tokens)
        estimate = replace(estimate, estimator=self.name)
        if log_w[-1].isneginf():
            return estimate
        return replace(estimate, stderr=0.0, bound=Bound.EXACT)
