r"""Mean estimation error over training: by epoch, or by amount of data.

    m[i][b] = mean over the sequences x of bin b of error_i(x)

The bins hold equal numbers of sequences in the order of their true log-probability,
which training does not move: a bin is the same sequences after every epoch.

Symbols: log p_M after epoch i -> ``model_log_p[i - 1]``; m[i][b] -> ``mean_error``.
Source: LeBrun, Sordoni and O'Donnell (2022), sections 4.2 and 4.3, figures 3 and 4 (the
insets are the relative change).
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import equal_count
from lm_latent_eval.distortion.statistics.error_curve import estimation_error
from lm_latent_eval.estimators.checks import checked_floating


@dataclass(frozen=True)
class ErrorTrajectory:
    """Mean estimation error of bins of sequences after each epoch.

    Example:
        >>> true_log_p = torch.tensor([-8.0, -2.0, -6.0, -4.0])
        >>> trajectory = ErrorTrajectory.of(
        ...     true_log_p, torch.stack([2 * true_log_p, 1.5 * true_log_p]), num_bins=2
        ... )
        >>> trajectory.mean_true_log_p
        (-7.0, -3.0)
        >>> trajectory.mean_error
        ((-7.0, -3.0), (-3.5, -1.5))
        >>> trajectory.relative_change
        ((0.5, 0.5),)
    """

    mean_true_log_p: tuple[float, ...]
    """Of each bin, from the least probable sequences, nats."""
    counts: tuple[int, ...]
    """Sequences in each bin; they differ by one at most."""
    mean_error: tuple[tuple[float, ...], ...]
    """``mean_error[i][b]``: of bin b after epoch i + 1, nats; below 0 where the model
    underestimates."""
    overall: tuple[float, ...]
    """Mean error over all sequences after each epoch, nats."""

    @classmethod
    def of(cls, true_log_p: Tensor, model_log_p: Tensor, num_bins: int = 50) -> Self:
        """Average the errors of each epoch by bins of true log-probability.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats after each epoch, shape ``(E, N)``.
            num_bins: How many bins; ties stay in the order given.

        Raises:
            TypeError: If an argument is not a floating-point tensor.
            ValueError: If ``model_log_p`` is not of that shape with E at least 1; as
                :func:`estimation_error`, of any epoch; or if ``num_bins`` is no whole
                number above 0, or there are fewer sequences than bins.
        """
        error = _errors(true_log_p, model_log_p)
        bins = [g.members for g in equal_count(true_log_p.double(), num_bins)]
        return cls(
            mean_true_log_p=tuple(true_log_p.double()[b].mean().item() for b in bins),
            counts=tuple(map(len, bins)),
            mean_error=tuple(
                tuple(row[b].mean().item() for b in bins) for row in error
            ),
            overall=tuple(error.mean(-1).tolist()),
        )

    @property
    def relative_change(self) -> tuple[tuple[float, ...], ...]:
        r"""How far each bin's mean error moved from one epoch to the next, E - 1 rows.

        .. math:: \frac{m_i - m_{i-1}}{|m_{i-1}|}

        Above 0: the error moved up, which is less underestimation where it was below 0
        (1: all of it gone) and more overestimation where it was above. NaN where
        :math:`m_{i-1}` is 0, from where no change is relative.
        """
        return tuple(
            tuple(map(_relative_change, before, after))
            for before, after in pairwise(self.mean_error)
        )


def _relative_change(before: float, after: float) -> float:
    return (after - before) / abs(before) if before else math.nan


def _errors(true_log_p: Tensor, model_log_p: Tensor) -> Tensor:
    """Return the estimation errors of every epoch, shape (E, N)."""
    checked_floating(model_log_p, "model_log_p")
    if model_log_p.ndim != 2 or len(model_log_p) == 0:
        raise ValueError(
            "model_log_p must have shape (E, N), a row an epoch with E >= 1; got "
            f"{tuple(model_log_p.shape)}"
        )
    rows = []
    for epoch, row in enumerate(model_log_p, 1):
        try:
            rows.append(estimation_error(true_log_p, row))
        except ValueError as error:
            raise ValueError(f"epoch {epoch}: {error}") from error
    return torch.stack(rows)
