r"""Mean estimation errors by length and over training.

By length, observed and expected from per-token errors:

    observed(n) = mean of error(x) over the sequences with |x| = n
    expected(n) = n * e,    e = mean over all x of error(x) / |x|

Symbols: |x| -> ``num_tokens``, the end included; e, the paper's epsilon-bar ->
``token_error``.
Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.5 and figure 12.

Over training, by epoch or by amount of data:

    m[i][b] = mean over the sequences x of bin b of error_i(x)

The bins hold equal numbers of sequences in the order of their true log-probability,
which training does not move: a bin is the same sequences after every epoch.

Symbols: log p_M after epoch i -> ``model_log_p[i - 1]``; m[i][b] -> ``mean_error``.
Source: LeBrun, Sordoni and O'Donnell (2022), sections 4.2 and 4.3, figures 3 and 4 (the
insets are the relative change).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import (
    FEWEST,
    checked_integers,
    equal_count,
)
from lm_latent_eval.distortion.statistics.error_curve import estimation_error
from lm_latent_eval.estimators.checks import checked_floating
from lm_latent_eval.estimators.standard_errors import bootstrap_interval


@dataclass(frozen=True)
class LengthError:
    """The sequences of one length."""

    num_tokens: int
    count: int
    mean_error: float
    """Nats; below 0 where the model underestimates."""
    lower: float
    """Of the mean error's bootstrap interval."""
    upper: float
    expected: float
    """The length times the mean error a token, nats."""


@dataclass(frozen=True)
class LengthErrors:
    r"""Mean estimation error by length, beside what lengths alone would make of it.

    The comparison is a fair test of errors that grow in proportion to length (then the
    mean of ratios estimates that proportion), and no decomposition where they do not:
    :math:`\bar\epsilon` counts a token of a short sequence for more than one of a long
    sequence, so that observed and expected errors need not agree even in total, and
    where the curves cross depends on which lengths are common.

    Example:
        >>> import torch
        >>> found = LengthErrors.of(
        ...     torch.tensor([-2.0, -4.0] * 11),
        ...     torch.tensor([-3.0, -8.0] * 11),
        ...     num_tokens=torch.tensor([1, 2] * 11),
        ... )
        >>> found.token_error  # of 1 and 2 nats a token
        -1.5
        >>> [(each.mean_error, each.expected) for each in found.lengths]
        [(-1.0, -1.5), (-4.0, -3.0)]
    """

    token_error: float
    """Mean over sequences of their error a token, nats."""
    lengths: tuple[LengthError, ...]
    """From the shortest."""
    left_out: int
    """Sequences of lengths that too few have; they count in ``token_error``."""

    @classmethod
    def of(
        cls,
        true_log_p: Tensor,
        model_log_p: Tensor,
        num_tokens: Tensor,
        *,
        estimated: bool = False,
    ) -> Self:
        """Average errors by length; only those of more than ten sequences.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats, shape ``(N,)``.
            num_tokens: Predicted tokens of each sequence, shape ``(N,)``, of integers.
            estimated: Whether log p_M are estimates, of which one may be above 0.

        Raises:
            TypeError: If a log-probability is not floating-point, or ``num_tokens`` no
                tensor of integers.
            ValueError: As :func:`estimation_error`; also if ``num_tokens`` is of
                another shape or below 1, or no length has so many sequences.
        """
        error = estimation_error(true_log_p, model_log_p, estimated=estimated)
        checked_integers(num_tokens, "num_tokens", count=len(error), least=1)
        token_error = (error / num_tokens).mean().item()
        found = []
        for length in num_tokens.unique().tolist():
            members = error[num_tokens == length]
            if len(members) < FEWEST:
                continue
            lower, upper = bootstrap_interval(members, seed=(0, length))
            found.append(
                LengthError(
                    num_tokens=length,
                    count=len(members),
                    mean_error=members.mean().item(),
                    lower=lower,
                    upper=upper,
                    expected=length * token_error,
                )
            )
        if not found:
            raise ValueError(
                f"no length has {FEWEST} of the {len(error)} sequences: score more"
            )
        left_out = len(error) - sum(each.count for each in found)
        return cls(token_error, tuple(found), left_out)


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
            tuple(
                (after - before) / abs(before) if before else math.nan
                for before, after in zip(*rows, strict=True)
            )
            for rows in pairwise(self.mean_error)
        )


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
