"""A model and a proposal in, an estimate out; a module an estimator."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.inference.beam import BeamMarginalization
from lm_latent_eval.inference.exact import Exact
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.mixed import Mixed
from lm_latent_eval.inference.smc import ParticleFilter

ESTIMATORS: dict[str, Any] = {
    method.name: method
    for method in (
        Mixed,
        ImportanceSampling,
        BeamMarginalization,
        ParticleFilter,
        Exact,
    )
}
"""Name -> estimator; each is built with its number of samples (or width)."""

__all__ = [
    "ESTIMATORS",
    "BeamMarginalization",
    "Exact",
    "ImportanceSampling",
    "Mixed",
    "ParticleFilter",
]
