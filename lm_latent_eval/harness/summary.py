"""What a run says of all its estimates together."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from lm_latent_eval.estimators import Estimate

UNRELIABLE_PARETO_K = 0.7


class Summary:
    """Collects the diagnostics of every estimate of a run."""

    def __init__(self) -> None:
        """Start empty."""
        self.estimates: list[Estimate] = []

    def add(self, estimates: list[Estimate]) -> None:
        """Take in the estimates of some more requests."""
        self.estimates += estimates

    def as_dict(self) -> dict[str, Any]:
        """Return counts, bounds, effective sample sizes and Pareto k, as JSON."""
        if not self.estimates:
            return {"requests": 0, "note": "every answer came from a cache"}
        sizes = [
            e.effective_sample_size
            for e in self.estimates
            if e.effective_sample_size is not None
        ]
        shapes = [e.pareto_k for e in self.estimates if e.pareto_k is not None]
        drawn = [e.num_samples for e in self.estimates]
        summary: dict[str, Any] = {
            "requests": len(self.estimates),
            "predicted_tokens": sum(e.num_tokens for e in self.estimates),
            "bound_of_log_likelihood": dict(
                Counter(str(e.bound) for e in self.estimates)
            ),
            "samples_per_request": [min(drawn), max(drawn)],
        }
        if sizes:
            summary["effective_sample_size_median"] = statistics.median(sizes)
            summary["effective_sample_size_minimum"] = min(sizes)
        if shapes:
            bad = sum(k > UNRELIABLE_PARETO_K for k in shapes)
            summary["share_of_pareto_k_above_0.7"] = bad / len(shapes)
        return summary
