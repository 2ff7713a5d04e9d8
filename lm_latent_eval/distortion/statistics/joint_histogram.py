"""The joint histogram of true and model log-probabilities.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.1 and figure 2.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import equal_edges, places
from lm_latent_eval.distortion.statistics.error_curve import estimation_error


@dataclass(frozen=True)
class JointHistogram:
    """How often true and model log-probabilities fall together.

    Below the diagonal the model underestimates.
    """

    edges: tuple[float, ...]
    """Of both axes, so that equality is the diagonal; nats, one more than bins."""
    counts: tuple[tuple[int, ...], ...]
    """``counts[i][j]``: true log-probability in bin i, the model's in bin j."""

    @classmethod
    def of(cls, true_log_p: Tensor, model_log_p: Tensor, *, num_bins: int = 50) -> Self:
        """Count sequences by both their log-probabilities.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats, shape ``(N,)``.
            num_bins: Equal ranges from the least to the largest of either.

        Raises:
            TypeError: As :func:`estimation_error`.
            ValueError: As :func:`estimation_error`, or if ``num_bins`` is no whole
                number above 0.

        Example:
            >>> histogram = JointHistogram.of(
            ...     torch.tensor([-4.0, -2.0]), torch.tensor([-8.0, -2.0]), num_bins=3
            ... )
            >>> histogram.edges
            (-8.0, -6.0, -4.0, -2.0)
            >>> histogram.counts
            ((0, 0, 0), (0, 0, 0), (1, 0, 1))
        """
        estimation_error(true_log_p, model_log_p, estimated=True)
        both = torch.stack([true_log_p.double(), model_log_p.double()])
        edges = equal_edges(both, num_bins)
        row, column = places(both, edges)
        counts = torch.bincount(row * num_bins + column, minlength=num_bins**2)
        return cls(
            edges=tuple(edges.tolist()),
            counts=tuple(map(tuple, counts.view(num_bins, num_bins).tolist())),
        )
