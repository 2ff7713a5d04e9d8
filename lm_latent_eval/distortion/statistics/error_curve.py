r"""Estimation error by true log-probability.

    error(x) = log p_M(x) - log p_L(x)

for sequences x of a language L whose probabilities are known, and a model M of it.
Negative: the model underestimates x.

Of a latent model log p_M(x) is an estimate, and its error is the model's own plus the
estimator's, which looks like underestimation too. For importance sampling and particle
filters, with the standard error se(x) of log p-hat(x),

    E[log p-hat(x)] <= log p_M(x)                  a bound (Jensen), for any K
    E[log p-hat(x)] ~= log p_M(x) - se(x)^2 / 2    to second order (delta method)

A mean error is then a stochastic lower bound of the model's: above 0 it shows
overestimation as it stands, below 0 it may be the estimator's doing. To second order
``estimator_bias`` says how much of it is; ``mean_error - estimator_bias`` is corrected
to that order and is no bound. Where weights are uneven the order is too low, and what
is left looks like the model's. Of 100 lognormal weights a sequence, se estimated:

    standard deviation of log w       1        2        3
    bias                           -0.007   -0.112   -0.650
    estimator_bias                 -0.008   -0.059   -0.138

So ``underestimates`` says nothing where ``estimator_bias`` is beyond 1/32 nats (se =
1/4, an effective sample size of about 16), even if that is the model's fault. What no
draw ever visits is seen by neither: look at more samples too. A beam's log p-hat is too
low as well and has no standard error: nothing here corrects it.

Symbols: log p_L(x_n) -> ``true_log_p[n]``; log p_M(x_n) -> ``model_log_p[n]``.
Departures: the paper's bins of "equal size by probability range" are equal ranges of
log p_L here, the axis that its figures have.
Source: LeBrun, Sordoni and O'Donnell (2022), section 3.2 (table 1 for the symbols), and
the footnote of section 4.1 on bins and bootstraps.

Of the joint histogram: section 4.1 and figure 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import (
    FEWEST,
    Bins,
    checked_log_p,
    equal_count,
    equal_edges,
    equal_width,
)
from lm_latent_eval.estimators.checks import checked_floating, refuse_first
from lm_latent_eval.estimators.standard_errors import (
    CONFIDENCE,
    RESAMPLES,
    bootstrap_interval,
)

LARGEST_BIAS = 1 / 32
"""Nats of second-order bias beyond which the order is too low to say anything."""


def estimation_error(
    true_log_p: Tensor, model_log_p: Tensor, *, estimated: bool = False
) -> Tensor:
    r"""Return by how much a model misjudges each sequence.

    .. math:: \mathrm{error}(x_n) = \log p_M(x_n) - \log p_L(x_n)

    Args:
        true_log_p: Log p_L in nats, shape ``(N,)``.
        model_log_p: Log p_M in nats, shape ``(N,)``.
        estimated: Whether those are estimates: then one may be above 0, since p-hat is
            unbiased and may be above 1.

    Returns:
        Nats, shape ``(N,)``, float64; below 0 where the model underestimates.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If N is 0, the shapes differ, or a log-probability is above 0, NaN
            or infinite: a sequence of probability zero has no finite error, and no
            mean survives it.

    Example:
        >>> estimation_error(torch.tensor([-2.0, -9.0]), torch.tensor([-3.0, -8.5]))
        tensor([-1.0000,  0.5000], dtype=torch.float64)

    Reference:
        LeBrun et al. (2022), section 3.2.
    """
    checked_log_p(true_log_p, "true_log_p")
    checked_log_p(model_log_p, "model_log_p", estimated=estimated)
    if len(true_log_p) == 0:
        raise ValueError("true_log_p must have shape (N,) with N >= 1; got (0,)")
    for name, log_p, why in (
        ("true_log_p", true_log_p, "no sequence of the language is impossible"),
        (
            "model_log_p",
            model_log_p,
            "the model rules the sequence out, and the mean error is -inf; count such "
            "sequences and leave them out",
        ),
    ):
        refuse_first(log_p == -math.inf, log_p, name, f"finite, <= 0: {why}")
    if true_log_p.shape != model_log_p.shape:
        raise ValueError(
            f"true_log_p has {len(true_log_p)} sequences and model_log_p "
            f"{len(model_log_p)}; expected both of each sequence"
        )
    return model_log_p.double() - true_log_p.double()


@dataclass(frozen=True)
class ErrorCurve:
    r"""Mean estimation error by true log-probability.

    Each of its ``bins`` is a row of a table, from the least to the most probable
    sequences:

    =================================  ================================================
    ``lowest, highest, count``         range, nats (of equal counts, least and most
                                       probable sequence), and number of sequences
    ``mean_true_log_p, mean_error``    nats; below 0 where the model underestimates
    ``lower, upper``                   bootstrap interval of the mean error; of 95 %,
                                       52 % hold of two sequences and 90 % of 11
    ``monte_carlo_stderr``             error of the mean error from the estimates of
                                       log p_M alone, nats; 0 is exact
    ``estimator_bias``                 nats, at most 0: how far the estimator alone
                                       moves the mean error, to second order
    ``trusted``                        whether that bias is small enough for its order
    ``underestimates``                 whether the model's own mean error is below 0:
                                       ``upper - estimator_bias < 0``
    =================================  ================================================

    ``underestimates`` takes the bias out because every resample has it. The Monte Carlo
    error is not added: each sequence was estimated from draws of its own, so resampling
    sequences resamples their noise, and the interval is that much wider already.
    (Estimates that share draws break this.) It is False where the bias is not
    ``trusted`` or the bin has ten sequences or fewer: nothing can be decided then.

    Example:
        >>> true_log_p = -torch.arange(1, 41, dtype=torch.float64)
        >>> curve = ErrorCurve.of(
        ...     true_log_p, 1.5 * true_log_p, bins="count", num_bins=2
        ... )
        >>> curve.bins[["count", "mean_error"]].values.tolist()
        [[20.0, -15.25], [20.0, -5.25]]
        >>> curve.mean_error, curve.share_underestimated
        (-10.25, 1.0)
    """

    bins: pd.DataFrame
    """Table of the bins."""
    left_out: int
    """Sequences in bins too small to be reported."""
    mean_error: float
    """Mean error of all sequences, nats: minus the divergence KL(p_L || p_M) if they
    were drawn from L."""
    share_underestimated: float
    """Share of sequences with an error below 0; of estimates it is too high where they
    are biased."""
    share_stderr: float
    """Binomial standard error of the share."""
    monte_carlo_stderr: float
    """Error of ``mean_error`` from the estimates of log p_M alone, nats; 0 is exact."""
    estimator_bias: float
    """Bias of ``mean_error``, nats, at most 0, to second order."""

    @classmethod
    def of(
        cls,
        true_log_p: Tensor,
        model_log_p: Tensor,
        *,
        stderr: Tensor | None = None,
        bins: Bins | str = Bins.WIDTH,
        num_bins: int = 50,
        resamples: int = RESAMPLES,
        confidence: float = CONFIDENCE,
        seed: int = 0,
    ) -> Self:
        """Compare a model's log-probabilities with the true ones.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats, shape ``(N,)``; exact, or estimates from
                independent draws.
            stderr: Monte Carlo standard errors of ``model_log_p`` in nats, shape
                ``(N,)``, 0 where it is exact; None: all are exact.
            bins: ``width``: equal ranges of log p_L, of which only those with more
                than ten sequences are reported. ``count``: equal numbers of sequences,
                to one; ties stay in the order given.
            num_bins: Number of bins.
            resamples: Bootstrap resamples a bin.
            confidence: Confidence of the intervals.
            seed: Seed of the resampling; a bin's draws depend on its index, too.

        Raises:
            TypeError: If an argument is not a floating-point tensor.
            ValueError: As :func:`estimation_error` and :func:`bootstrap_interval`; also
                if ``num_bins`` is no whole number above 0, there are more bins of equal
                count than sequences, no bin of equal width has more than ten, or a
                standard error is missing, negative or not finite.
        """
        estimated = stderr is not None and bool((stderr > 0).any())
        error = estimation_error(true_log_p, model_log_p, estimated=estimated)
        true_log_p = true_log_p.double()
        stderr = torch.zeros_like(error) if stderr is None else stderr
        variance = _checked_stderr(stderr, len(error)).double().square()
        divide = equal_width if Bins(bins) is Bins.WIDTH else equal_count
        rows = []
        for group in divide(true_log_p, num_bins):
            errors, bias = error[group.members], _mean_bias(variance[group.members])
            lower, upper = bootstrap_interval(
                errors,
                seed=(seed, group.index),
                resamples=resamples,
                confidence=confidence,
            )
            trusted, is_large = bias >= -LARGEST_BIAS, len(errors) >= FEWEST
            rows.append(
                {
                    "lowest": group.lowest,
                    "highest": group.highest,
                    "count": len(errors),
                    "mean_true_log_p": true_log_p[group.members].mean().item(),
                    "mean_error": errors.mean().item(),
                    "lower": lower,
                    "upper": upper,
                    "monte_carlo_stderr": _stderr_of_mean(variance[group.members]),
                    "estimator_bias": bias,
                    "trusted": trusted,
                    "underestimates": trusted and is_large and upper - bias < 0,
                }
            )
        table = pd.DataFrame(rows)
        below = (error < 0).double().mean().item()
        return cls(
            bins=table,
            left_out=len(error) - int(table["count"].sum()),
            mean_error=error.mean().item(),
            share_underestimated=below,
            share_stderr=math.sqrt(below * (1 - below) / len(error)),
            monte_carlo_stderr=_stderr_of_mean(variance),
            estimator_bias=_mean_bias(variance),
        )


def _stderr_of_mean(variance: Tensor) -> float:
    r"""Return :math:`\sqrt{\sum_n \mathrm{se}_n^2} / n`: of a mean of n estimates."""
    return math.sqrt(variance.sum().item()) / len(variance)


def _mean_bias(variance: Tensor) -> float:
    r"""Return the mean of :math:`-\mathrm{se}_n^2 / 2`."""
    return 0.0 - variance.mean().item() / 2  # not -0.0 where all is exact


def _checked_stderr(stderr: Tensor, count: int) -> Tensor:
    """Return standard errors, or raise unless they are finite, >= 0 and as many."""
    if checked_floating(stderr, "stderr").shape != (count,):
        raise ValueError(
            f"stderr must have shape ({count},), one a sequence and 0 where log p_M is "
            f"exact; got {tuple(stderr.shape)}"
        )
    expected = "finite, >= 0. A single sample has no standard error: draw more"
    refuse_first(~(stderr.isfinite() & (stderr >= 0)), stderr, "stderr", expected)
    return stderr


@dataclass(frozen=True)
class JointHistogram:
    """Joint histogram of true and model log-probabilities.

    Below the diagonal the model underestimates.
    """

    edges: tuple[float, ...]
    """Edges of both axes, so that equality is the diagonal; nats, one more than bins.
    """
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
        edges = equal_edges(both, num_bins).numpy()
        true, model = both.numpy()
        found, _, _ = np.histogram2d(true, model, bins=[edges, edges])
        counts = tuple(map(tuple, found.astype(int).tolist()))
        return cls(tuple(edges.tolist()), counts)
