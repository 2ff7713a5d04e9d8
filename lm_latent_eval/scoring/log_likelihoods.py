"""Log-probabilities of sequences, each with its Monte Carlo error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.estimators import Estimate


@dataclass(frozen=True)
class LogLikelihoods:
    """Log-probabilities of n sequences under a model."""

    log_p: Tensor
    """Nats, (n,), float64; ``-inf`` where the model rules a sequence out."""
    stderr: Tensor
    """Monte Carlo error of each, (n,); 0 where it is exact, ``inf`` if unknown."""

    @classmethod
    def exact(cls, log_p: Tensor) -> Self:
        return cls(log_p, torch.zeros_like(log_p))

    @classmethod
    def of(cls, scores: Sequence[float | Estimate]) -> Self:
        """Take numbers, and estimates that know their error."""
        log_p, stderr = [], []
        for score in scores:
            if isinstance(score, Estimate):
                log_p.append(score.log_evidence)
                stderr.append(math.inf if score.stderr is None else score.stderr)
            else:
                log_p.append(float(score))
                stderr.append(0.0)
        return cls(*torch.tensor([log_p, stderr], dtype=torch.float64))
