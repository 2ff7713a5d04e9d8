r"""Estimation error by true log-probability and number of perturbations, streamed.

    m[e][k] = mean of error(x) over the sequences x, perturbed e times, with
              k * width <= log p_L(x) < (k + 1) * width

Sequences come in batches and are forgotten: what is kept is a count, a mean and a sum
of squares a cell, so memory grows with the cells that are filled, not with the
sequences. The bins of log p_L are multiples of a width: no range need be known before.

Perturbed sequences can have probability zero, under the language or the model:

    log p_L    log p_M    error        here
    -inf       finite     +inf         ``impossible``; overestimated
    -inf       -inf       undefined    ``impossible`` and ``both_impossible``; no error
    finite     -inf       -inf         ``ruled_out``; underestimated
    finite     finite     finite       in a cell and in the row's mean

Infinite errors are counted and not averaged.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and figure 5; Chan, Golub and
LeVeque (1983) for the moments of joined batches.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import checked_integers, checked_log_p


@dataclass(frozen=True)
class ErrorCell:
    """Sequences of one range of true log-probability, perturbed equally often."""

    edits: int
    """How often they were perturbed."""
    lowest: float
    """Where the range begins, nats; it belongs to the cell (to rounding)."""
    highest: float
    """Where it ends, nats; it belongs to the next one."""
    count: int
    """Sequences with a finite error."""
    mean_error: float
    """Of those, nats; above 0 where the model overestimates."""


@dataclass(frozen=True)
class ErrorRow:
    """All sequences that were perturbed equally often."""

    edits: int
    count: int
    """All of them, impossible and ruled out ones included."""
    impossible: int
    """Those that the language never utters."""
    both_impossible: int
    """Those among them that the model rules out as well."""
    ruled_out: int
    """Those that the model rules out and the language does not."""
    mean_error: float
    """Over the finite errors, nats; NaN if there is none."""
    stderr: float
    """Its standard error over sequences; ``inf`` (unknown) of fewer than two."""
    share_overestimated: float
    """Of all sequences: those with an error above 0, finite or not."""

    @property
    def num_finite(self) -> int:
        """Sequences that have a finite error."""
        return self.count - self.impossible - self.ruled_out


class ErrorMap:
    """Mean errors by rarity and number of perturbations, batch by batch.

    How sequences are divided into batches moves numbers by rounding only.

    Example:
        >>> errors = ErrorMap(width=10.0)
        >>> errors.add(
        ...     torch.tensor([-12.0, -18.0, -25.0, -torch.inf]),
        ...     torch.tensor([-13.0, -21.0, -22.0, -30.0]),
        ...     edits=torch.tensor([0, 0, 1, 1]),
        ... )
        >>> [(c.edits, c.lowest, c.count, c.mean_error) for c in errors.cells()]
        [(0, -20.0, 2, -2.0), (1, -30.0, 1, 3.0)]
        >>> [(r.edits, r.impossible, r.share_overestimated) for r in errors.rows()]
        [(0, 0, 0.0), (1, 1, 1.0)]
    """

    def __init__(self, width: float) -> None:
        """Begin without sequences.

        Args:
            width: Of a bin of true log-probability, nats.

        Raises:
            ValueError: If it is not above 0 and finite.
        """
        if not 0 < width < math.inf:
            raise ValueError(f"width must be above 0 and finite; got {width}")
        self.width = width
        self._cells: defaultdict[tuple[int, int], _Moments] = defaultdict(_Moments)
        self._tally: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(
        self,
        true_log_p: Tensor,
        model_log_p: Tensor,
        edits: Tensor,
        *,
        estimated: bool = False,
    ) -> None:
        """Count some more sequences.

        Args:
            true_log_p: Log p_L in nats, shape ``(n,)``; ``-inf`` is a probability of 0.
            model_log_p: Log p_M in nats, shape ``(n,)``; ``-inf`` likewise.
            edits: How often each was perturbed, shape ``(n,)``, of integers.
            estimated: Whether log p_M are estimates, of which one may be above 0.

        Raises:
            TypeError: If a log-probability is not floating-point, or ``edits`` is no
                tensor of integers.
            ValueError: If the shapes differ, a log-probability is NaN or above 0, or a
                number of perturbations is negative. Then nothing of the batch counts.
        """
        checked_log_p(true_log_p, "true_log_p")
        checked_log_p(model_log_p, "model_log_p", estimated=estimated)
        if true_log_p.shape != model_log_p.shape:
            raise ValueError(
                f"true_log_p has {len(true_log_p)} sequences and model_log_p "
                f"{len(model_log_p)}; expected both of each sequence"
            )
        edits = checked_integers(edits, "edits", count=len(true_log_p), least=0).long()
        true_log_p = true_log_p.double()
        error = model_log_p.double() - true_log_p  # -inf less -inf is NaN
        impossible = true_log_p == -math.inf
        for name, which in (
            ("count", torch.ones_like(impossible)),
            ("impossible", impossible),
            ("both_impossible", error.isnan()),
            ("ruled_out", error == -math.inf),
            ("overestimated", error > 0),
        ):
            self._tally[name].update(_frequencies(edits[which]))
        finite = error.isfinite()
        bins = (true_log_p[finite] / self.width).floor().long()
        cells, moments = _moments(torch.stack([edits[finite], bins], -1), error[finite])
        for cell, each in zip(cells, moments, strict=True):
            self._cells[cell] += each

    def cells(self) -> tuple[ErrorCell, ...]:
        """Return the cells that hold a sequence, by edits and then from the rarest."""
        return tuple(
            ErrorCell(
                edits=edits,
                lowest=place * self.width,
                highest=(place + 1) * self.width,
                count=self._cells[edits, place].count,
                mean_error=self._cells[edits, place].mean,
            )
            for edits, place in sorted(self._cells)
        )

    def rows(self) -> tuple[ErrorRow, ...]:
        """Return a row for each number of perturbations that occurs, in order."""
        return tuple(map(self._row, sorted(self._tally["count"])))

    def _row(self, edits: int) -> ErrorRow:
        cells = (self._cells[cell] for cell in sorted(self._cells) if cell[0] == edits)
        finite = sum(cells, start=_Moments())
        count = self._tally["count"][edits]
        return ErrorRow(
            edits=edits,
            count=count,
            impossible=self._tally["impossible"][edits],
            both_impossible=self._tally["both_impossible"][edits],
            ruled_out=self._tally["ruled_out"][edits],
            mean_error=finite.mean if finite.count else math.nan,
            stderr=finite.stderr_of_mean,
            share_overestimated=self._tally["overestimated"][edits] / count,
        )


@dataclass(frozen=True)
class _Moments:
    """Count, mean and squared deviations of some errors."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # of the deviations from the mean, summed

    def __add__(self, other: "_Moments") -> "_Moments":
        """Join two sets of errors: Chan et al. (1983), stable where means are far."""
        count = self.count + other.count
        if count == 0:
            return self
        share, gap = other.count / count, other.mean - self.mean
        return _Moments(
            count,
            self.mean + gap * share,
            self.squares + other.squares + gap**2 * self.count * share,
        )

    @property
    def stderr_of_mean(self) -> float:
        if self.count < 2:
            return math.inf
        return math.sqrt(self.squares / (self.count - 1) / self.count)


def _moments(
    keys: Tensor, values: Tensor
) -> tuple[list[tuple[int, int]], list[_Moments]]:
    """Return the distinct keys, shape (n, 2) in, and the moments of their values."""
    if len(keys) == 0:
        return [], []
    distinct, place = keys.unique(dim=0, return_inverse=True)
    counts = place.bincount()
    means = place.bincount(weights=values) / counts
    squares = place.bincount(weights=(values - means[place]).square())
    columns = (counts.tolist(), means.tolist(), squares.tolist())
    return [(e, k) for e, k in distinct.tolist()], list(map(_Moments, *columns))


def _frequencies(values: Tensor) -> dict[int, int]:
    distinct, counts = values.unique(return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))
