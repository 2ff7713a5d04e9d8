"""Base classes of estimators of whole texts, and of those by a few long chains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.interface import Estimator, Weighted
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.text.batch import TokenBatch

FEWEST = 5
"""Fewer chains, filters or passes do not tell how much they vary: there is no error."""
CHAINS = 10
"""The most chains: their spread is the error."""


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
    estimate = Estimate.from_log_weights(
        log_w, num_tokens=num_tokens, estimator=estimator
    )
    error = stderr_of_few(estimate.draws_stderr, len(log_w))
    return replace(
        estimate,
        draws_stderr=error,
        draws_degrees=float(max(len(log_w) - 1, 1)),
        num_samples=num_samples,
        pareto_k=None,
    )


def stderr_of_few(stderr: float, number: int) -> float:
    """Divide squared deviations by R - 1 instead of R, where R is not large.

    An interval of R weights is Student's t of R - 1 degrees of freedom. Infinite, which
    is to say unknown, of fewer than ``FEWEST``.
    """
    return math.inf if number < FEWEST else stderr * math.sqrt(number / (number - 1))


@dataclass(frozen=True)
class WholeTextEstimator(Estimator):
    """An estimator that cannot go on with a text: all of it must be there."""

    num_samples: int

    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
    ) -> Particles:
        """Refuse to read on.

        Raises:
            ValueError: Always: what was decided of the text so far would change.
        """
        raise ValueError(
            f"estimator={self.name} takes whole texts, and this one goes on: use "
            "mixed, is or smc"
        )

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Refuse what ``extend`` refuses.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"estimator={self.name} has no weights of a text that goes on")

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x)."""
        return log_w


@dataclass(frozen=True)
class MarkovChainEstimator(WholeTextEstimator):
    """K units of work, divided among R chains of S each: at most ten."""

    def __post_init__(self) -> None:
        """Refuse a number that cannot be divided."""
        chains_of(self.num_samples, self.name)

    @property
    def chains(self) -> int:
        """R: as many as leave ten units each, and no more than ten."""
        return chains_of(self.num_samples, self.name)

    @property
    def length(self) -> int:
        """S, of each chain."""
        return self.num_samples // self.chains

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from those of the chains (R,)."""
        return estimate_of_few(
            log_w,
            num_samples=self.num_samples,
            num_tokens=num_tokens,
            estimator=self.name,
        )
