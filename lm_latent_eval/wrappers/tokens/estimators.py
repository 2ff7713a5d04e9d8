"""Estimates of log p from walks.

The estimators of ``inference`` are given segmentations found or drawn besides the
canonical one; ``canonical`` uses that one alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.beam import BeamMarginalization, Exact
from lm_latent_eval.inference.discrete import (
    MOST_FOUND,
    MOST_FOUND_SHARE,
    OTHERS,
    PASSES,
    DiscreteFilter,
)
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.wrappers.base import no_probability
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.search import SegmentationWalk, WalkPlan

NEVER = "in every segmentation that was looked at"
Method = BeamMarginalization | DiscreteFilter | Exact | ImportanceSampling
CHECKS = 3
"""Passes of half the width, which check the others."""
LEAST_WIDTH = 2
"""Smallest width of a pass."""
LEAST_ERROR = 0.3
"""Over 1 / W, nats: what passes that agree in all err by, measured; of texts of more
than ``LONG`` tokens more, by the square of how many times as many they have, no more
than ``LONGEST``."""
LONG, LONGEST = 100, 300


@dataclass(frozen=True)
class WalkEstimator:
    """An estimator of ``inference`` for walks."""

    method: Method
    plan: WalkPlan

    @classmethod
    def of(cls, options: TokensOptions) -> WalkEstimator:
        name, k = options.estimator, options.num_samples
        if name == "exact":
            return cls(Exact(), WalkPlan(None))
        if name == "beam":
            return cls(BeamMarginalization(k), WalkPlan((k,)))
        if name == "dpf":
            # K counts every history: R passes of W, and C of half as many.
            width = max(LEAST_WIDTH, 2 * k // (2 * PASSES + CHECKS))
            filters = DiscreteFilter(PASSES * width, narrowest=LEAST_WIDTH)
            widths = (width,) * PASSES + (width // 2,) * CHECKS
            return cls(filters, WalkPlan(widths, thins=True))
        # A group of one history is a draw, in proportion to its rank.
        return cls(ImportanceSampling(k), WalkPlan((1,) * k, thins=True))

    def log_weights(self, walk: SegmentationWalk) -> Tensor:
        """Input of ``method.estimate``, nats, float64.

        The canonical segmentation is a separate term, so no estimate lies below it.
        """
        own = walk.stretch.log_p
        if isinstance(self.method, Exact | BeamMarginalization):
            log_w = torch.tensor([own, *walk.log_w], dtype=torch.float64)
        else:
            log_w = torch.from_numpy(np.logaddexp(walk.log_w, own))
        mark = log_w.new_full((1,), -torch.inf if walk.pruned else 0.0)
        if isinstance(self.method, DiscreteFilter):
            none = log_w.new_full((OTHERS,), -torch.inf)  # of another look-ahead
            return torch.cat([log_w, none, mark])
        return torch.cat([log_w, mark]) if isinstance(self.method, Exact) else log_w

    def estimate(self, walk: SegmentationWalk, num_tokens: int) -> Estimate:
        """Estimate log p of a text.

        Raises:
            MissedSupportError: If all segmentations found or drawn have probability
                zero.
        """
        if max(walk.stretch.log_p, *walk.log_w, -math.inf) == -math.inf:
            raise no_probability(NEVER)
        log_w = self.log_weights(walk)
        estimate = self.method.estimate(log_w, num_tokens)
        # What passes may all have left out adds up over the places of a text where
        # others than the canonical tokens count, as the gap does.
        estimate = self._at_least(estimate, self._gap(walk, log_w))
        return self._bounded(estimate, walk)

    def _at_least(self, estimate: Estimate, share: float) -> Estimate:
        """Return an estimate whose error is no less than that of passes that agree.

        Where it is more than checks may find, there is none.

        Args:
            estimate: Of a text or a continuation.
            share: What passes sum of it, where the rest is known; above 1 if what they
                may all have left out adds up.
        """
        if estimate.stderr is None or not isinstance(self.method, DiscreteFilter):
            return estimate
        longer = min(max(estimate.num_tokens, LONG), LONGEST) / LONG
        least = LEAST_ERROR * longer**2 * share / self.method.width
        if estimate.bound is Bound.EXACT:
            return replace(estimate, stderr=0.0)
        error = math.hypot(estimate.stderr, least)
        if error > max(MOST_FOUND, -MOST_FOUND_SHARE * estimate.log_evidence):
            return replace(estimate, stderr=None, replicates=())
        return replace(estimate, stderr=error)

    @staticmethod
    def _gap(walk: SegmentationWalk, log_w: Tensor) -> float:
        """What the best pass adds to the canonical segmentation, nats."""
        return max(float(log_w[:PASSES].max()) - walk.stretch.log_p, 0.0)

    def difference(
        self, whole: SegmentationWalk, prefix: SegmentationWalk, num_tokens: int
    ) -> Estimate:
        """Estimate log p of a text after its context, from both of their walks."""
        log_w, before = self.log_weights(whole), self.log_weights(prefix)
        estimate = self.estimate(whole, num_tokens)
        context = self.estimate(prefix, num_tokens)
        if isinstance(self.method, DiscreteFilter):
            exact = estimate.bound is context.bound is Bound.EXACT
            log_w[-1] = 0.0 if exact else -math.inf
            gap = max(self._gap(whole, log_w), self._gap(prefix, before))
            difference = self.method.difference(log_w, before, num_tokens)
            difference = self._at_least(difference, -math.expm1(-gap))
            if estimate.stderr is None or context.stderr is None:
                return replace(difference, stderr=None, replicates=())
            return difference
        log_p = estimate.log_evidence - context.log_evidence
        if estimate.bound is context.bound is Bound.EXACT:
            return replace(estimate, log_evidence=log_p)
        if isinstance(self.method, Exact | BeamMarginalization):
            error = 0.0
        else:
            error = self.method.difference(log_w, before, num_tokens).draws_stderr
        if estimate.bound is Bound.EXACT:
            error = context.draws_stderr
        return replace(
            estimate,
            log_evidence=log_p,
            stderr=None,
            draws_stderr=error,
            draws_degrees=min(estimate.draws_degrees, context.draws_degrees),
            bound=Bound.NONE,
            log_weights=(),
        )

    def _bounded(self, estimate: Estimate, walk: SegmentationWalk) -> Estimate:
        """Bound with respect to all segmentations, those too long included."""
        if isinstance(self.method, Exact | BeamMarginalization) and not walk.pruned:
            estimate = replace(estimate, stderr=0.0, bound=Bound.EXACT)
        if walk.stretch.lattice.longest <= walk.stretch.room:
            return estimate
        exact = estimate.bound is Bound.EXACT
        # Neither search nor draws reach what the network cannot read.
        return replace(
            estimate,
            stderr=None,
            bound=Bound.STRICT_LOWER if exact else estimate.bound,
        )


def canonical(log_p: float, num_tokens: int, *, restores: bool = True) -> Estimate:
    """Estimate by the canonical segmentation alone.

    Args:
        log_p: Log p of the segmentation, nats.
        num_tokens: Its number of tokens.
        restores: Whether it writes the string; if not, it bounds nothing.

    Raises:
        MissedSupportError: If log p is -inf.
    """
    if log_p == -math.inf:
        raise no_probability(NEVER)
    estimate = Estimate.exact(log_p, num_tokens=num_tokens, estimator="canonical")
    bound = Bound.STRICT_LOWER if restores else Bound.NONE
    return replace(estimate, stderr=None, bound=bound, replicates=())


def shifted(estimate: Estimate, log_factor: float) -> Estimate:
    """Multiply an estimate by a known factor, whose log is in nats.

    Raises:
        MissedSupportError: If the factor is zero.
    """
    if not log_factor:
        return estimate
    if log_factor == -math.inf:
        raise no_probability(NEVER)
    return replace(
        estimate,
        log_evidence=estimate.log_evidence + log_factor,
        log_weights=tuple(log_w + log_factor for log_w in estimate.log_weights),
    )
