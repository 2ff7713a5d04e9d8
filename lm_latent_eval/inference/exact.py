"""Models whose likelihoods are exact: without latents, or with all of them summed.

One latent is then all there is to sum over: the empty one, or, of a model that can sum
its latents itself (``Summable``), all of them at once.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, replace
from typing import ClassVar

from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.beam import BeamMarginalization
from lm_latent_eval.inference.interface import Weighted
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import Summable
from lm_latent_eval.text.batch import TokenBatch

_BEAM = BeamMarginalization(1)


@dataclass(frozen=True)
class Exact:
    """log p(x) as it is: a beam of one that holds every latent."""

    name: ClassVar[str] = "exact"
    num_samples: ClassVar[int] = 1
    asked: InitVar[int] = 1
    """How many others would draw."""

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Return log p(x), (B, 1) float64."""
        return _BEAM.log_weights(model, _summation(model, proposal), batch, keys)

    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
    ) -> Particles:
        """Read on."""
        proposal = _summation(model, proposal)
        return _BEAM.extend(model, proposal, batch, keys, starts, after)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return log p(x) of one text."""
        return replace(
            Estimate.from_beam(log_w, num_tokens=num_tokens),
            stderr=0.0,
            bound=Bound.EXACT,
            estimator=self.name,
        )

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Return log p(continuation | prefix)."""
        return replace(
            _BEAM.difference(log_w, log_w_prefix, num_tokens),
            stderr=0.0,
            bound=Bound.EXACT,
            estimator=self.name,
        )


def _summation(model: LM[P], proposal: Sampler[Q]) -> Sampler[Q]:
    """Return what finds the one latent of a model."""
    return model.summation if isinstance(model, Summable) else proposal
