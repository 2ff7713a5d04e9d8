"""Estimates from a few independent unbiased ones, each of much work."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.smc import FEWEST, FILTERS

CHAINS = FILTERS
"""As many as filters, for the same reason: their spread is the error."""


def chains_of(num_samples: int, name: str) -> int:
    """Return among how many chains K evaluations of p(x, z) are divided.

    Raises:
        ValueError: If they cannot be divided.
    """
    chains = min(CHAINS, max(1, num_samples // CHAINS))
    if num_samples % chains:
        raise ValueError(
            f"num_samples={num_samples}: estimator={name} needs a multiple of {chains},"
            " the chains that they are divided among"
        )
    return chains


def estimate_of_few(
    log_w: Tensor, *, num_samples: int, num_tokens: int, estimator: str
) -> Estimate:
    """Estimate log p(x) by the mean of R independent unbiased weights, (R,) nats.

    Their squared deviations are divided by R - 1. The error is infinite, which is to
    say unknown, of fewer than ``FEWEST``.
    """
    chains = len(log_w)
    estimate = Estimate.from_log_weights(
        log_w, num_tokens=num_tokens, estimator=estimator
    )
    error = math.inf
    if chains >= FEWEST:
        error = estimate.draws_stderr * math.sqrt(chains / (chains - 1))
    return replace(estimate, draws_stderr=error, num_samples=num_samples, pareto_k=None)
