r"""Estimation error: where a model puts too much or too little probability.

    error(x) = log p_M(x) - log p_L(x)

for sequences x of a language L whose probabilities are known, and a model M of it.
Negative: the model underestimates x.

Symbols: log p_L(x_n) -> ``true_log_p[n]``; log p_M(x_n) -> ``model_log_p[n]``.
Departures: the paper's bins of "equal size by probability range" are equal ranges of
log p_L here, the axis that its figures have.
Source: LeBrun, Sordoni and O'Donnell (2022), section 3.2 (table 1 for the symbols), and
the footnote of section 4.1 on bins and bootstraps.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.estimators.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    bootstrap_interval,
    checked_count,
)
from lm_latent_eval.estimators.importance import checked_floating

FEWEST = 11
"""Sequences in a bin of equal width that is reported: more than ten."""


class Bins(StrEnum):
    """What the bins of an error curve have in common."""

    WIDTH = "width"
    """Equal ranges of true log-probability; only those with more than ten count."""

    COUNT = "count"
    """Equal numbers of sequences, in the order of true log-probability."""


def estimation_error(true_log_p: Tensor, model_log_p: Tensor) -> Tensor:
    r"""Return by how much a model misjudges each sequence.

    .. math:: \mathrm{error}(x_n) = \log p_M(x_n) - \log p_L(x_n)

    Args:
        true_log_p: Log p_L in nats, shape ``(N,)``.
        model_log_p: Log p_M in nats, shape ``(N,)``.

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
    _checked_log_p(
        true_log_p, "true_log_p", "no sequence of the language is impossible"
    )
    _checked_log_p(
        model_log_p,
        "model_log_p",
        "the model rules the sequence out, and the mean error is -inf; count such "
        "sequences and leave them out",
    )
    if true_log_p.shape != model_log_p.shape:
        raise ValueError(
            f"true_log_p has {len(true_log_p)} sequences and model_log_p "
            f"{len(model_log_p)}; expected both of each sequence"
        )
    return model_log_p.double() - true_log_p.double()


@dataclass(frozen=True)
class ErrorBin:
    """The sequences of one bin of true log-probability, and their mean error."""

    lowest: float
    """Where the bin begins (equal counts: its least probable sequence), nats."""
    highest: float
    """Where it ends, nats."""
    count: int
    mean_true_log_p: float
    mean_error: float
    """Nats; below 0 where the model underestimates."""
    lower: float
    """Of the mean error's bootstrap interval."""
    upper: float


@dataclass(frozen=True)
class ErrorCurve:
    """Mean estimation error by true log-probability.

    Example:
        >>> true_log_p = -torch.arange(1, 41, dtype=torch.float64)
        >>> curve = ErrorCurve.of(
        ...     true_log_p, 1.5 * true_log_p, bins="count", num_bins=2
        ... )
        >>> [(b.count, b.mean_error) for b in curve.bins]
        [(20, -15.25), (20, -5.25)]
        >>> curve.mean_error, curve.share_underestimated
        (-10.25, 1.0)
    """

    bins: tuple[ErrorBin, ...]
    """From the least to the most probable sequences."""
    left_out: int
    """Sequences in bins too small to be reported."""
    mean_error: float
    """Over all sequences, nats. Of sequences drawn from L, minus the divergence
    KL(p_L || p_M)."""
    share_underestimated: float
    share_stderr: float
    """Binomial standard error of the share."""

    @classmethod
    def of(
        cls,
        true_log_p: Tensor,
        model_log_p: Tensor,
        *,
        bins: Bins | str = Bins.WIDTH,
        num_bins: int = 50,
        resamples: int = RESAMPLES,
        confidence: float = CONFIDENCE,
        seed: int = 0,
    ) -> Self:
        """Compare a model's log-probabilities with the true ones.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats, shape ``(N,)``.
            bins: ``width``: equal ranges of log p_L, of which only those with more
                than ten sequences are reported. ``count``: equal numbers of sequences,
                to one; ties stay in the order given.
            num_bins: How many.
            resamples: Bootstrap resamples a bin.
            confidence: Of the intervals.
            seed: Of the resampling; a bin's draws depend on it and the bin's index.

        Raises:
            TypeError: If an argument is not a floating-point tensor.
            ValueError: As :func:`estimation_error` and :func:`bootstrap_interval`; also
                if ``num_bins`` is no whole number above 0, there are more bins of equal
                count than sequences, or no bin of equal width has more than ten.
        """
        error = estimation_error(true_log_p, model_log_p)
        true_log_p = true_log_p.double()
        checked_count(num_bins, "num_bins")
        if Bins(bins) is Bins.WIDTH:
            groups = _equal_width(true_log_p, num_bins)
        else:
            groups = _equal_count(true_log_p, num_bins)
        found = []
        for group in groups:
            lower, upper = bootstrap_interval(
                error[group.members],
                seed=(seed, group.index),
                resamples=resamples,
                confidence=confidence,
            )
            found.append(
                ErrorBin(
                    lowest=group.lowest,
                    highest=group.highest,
                    count=len(group.members),
                    mean_true_log_p=true_log_p[group.members].mean().item(),
                    mean_error=error[group.members].mean().item(),
                    lower=lower,
                    upper=upper,
                )
            )
        below = (error < 0).double().mean().item()
        return cls(
            bins=tuple(found),
            left_out=len(error) - sum(each.count for each in found),
            mean_error=error.mean().item(),
            share_underestimated=below,
            share_stderr=math.sqrt(below * (1 - below) / len(error)),
        )


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
        estimation_error(true_log_p, model_log_p)
        checked_count(num_bins, "num_bins")
        both = torch.stack([true_log_p.double(), model_log_p.double()])
        edges = _edges(both, num_bins)
        row, column = _places(both, edges)
        counts = torch.bincount(row * num_bins + column, minlength=num_bins**2)
        return cls(
            edges=tuple(edges.tolist()),
            counts=tuple(map(tuple, counts.view(num_bins, num_bins).tolist())),
        )


@dataclass(frozen=True)
class _Group:
    """Sequences that share a bin: its index, its ends, and who they are."""

    index: int
    lowest: float
    highest: float
    members: Tensor


def _equal_width(true_log_p: Tensor, num_bins: int) -> list[_Group]:
    """Divide the range of log p_L into equal parts; leave out the thinly filled."""
    edges = _edges(true_log_p, num_bins)
    place = _places(true_log_p, edges)
    counts = torch.bincount(place, minlength=num_bins)
    members = place.argsort(stable=True).split(counts.tolist())
    groups = [
        _Group(i, edges[i].item(), edges[i + 1].item(), members[i])
        for i in range(num_bins)
        if len(members[i]) >= FEWEST
    ]
    if not groups:
        raise ValueError(
            f"none of {num_bins} bins of equal width has {FEWEST} of the "
            f"{len(true_log_p)} sequences: ask for fewer bins, or for bins of equal "
            "count"
        )
    return groups


def _equal_count(true_log_p: Tensor, num_bins: int) -> list[_Group]:
    """Divide the sequences, in the order of log p_L, into equal parts."""
    if num_bins > len(true_log_p):
        raise ValueError(
            f"{len(true_log_p)} sequences cannot fill {num_bins} bins of equal count"
        )
    parts = true_log_p.argsort(stable=True).tensor_split(num_bins)
    return [
        _Group(i, true_log_p[part[0]].item(), true_log_p[part[-1]].item(), part)
        for i, part in enumerate(parts)
    ]


def _edges(values: Tensor, num_bins: int) -> Tensor:
    """Return the ends of equal parts of a range, of one nat around equal values."""
    lowest, highest = values.min().item(), values.max().item()
    if lowest == highest:
        lowest, highest = lowest - 0.5, highest + 0.5
    return torch.linspace(lowest, highest, num_bins + 1, dtype=torch.float64)


def _places(values: Tensor, edges: Tensor) -> Tensor:
    """Return each value's bin; a value on an edge belongs to the upper one."""
    return torch.bucketize(values, edges[1:-1], right=True)


def _checked_log_p(log_p: Tensor, name: str, meaning: str) -> None:
    """Raise unless these are finite logarithms of probabilities, shape (N,)."""
    if checked_floating(log_p, name).ndim != 1 or len(log_p) == 0:
        raise ValueError(
            f"{name} must have shape (N,) with N >= 1; got {tuple(log_p.shape)}"
        )
    bad = (~(log_p.isfinite() & (log_p <= 0))).nonzero()
    if len(bad):
        index = int(bad[0])
        found = log_p[index].item()
        hint = f": {meaning}" if found == -math.inf else ""
        raise ValueError(f"{name}[{index}] is {found}; expected finite, <= 0{hint}")
