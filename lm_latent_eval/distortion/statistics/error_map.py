r"""Estimation error by true log-probability and number of perturbations.

    m[e][k] = mean of error(x) over the sequences x, perturbed e times, with
              k * width <= log p_L(x) < (k + 1) * width

The ranges of log p_L are multiples of a width.

Perturbed sequences can have probability zero, under the language or the model:

    log p_L    log p_M    error        here
    -inf       finite     +inf         ``impossible``; overestimated
    -inf       -inf       undefined    ``impossible``; no error
    finite     -inf       -inf         ``ruled_out``; underestimated
    finite     finite     finite       in a cell and in the row's mean

Infinite errors are counted and not averaged.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and figure 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import checked_integers, checked_log_p
from lm_latent_eval.estimators.standard_errors import mean_stderr


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


@dataclass(frozen=True)
class ErrorMap:
    """Mean errors by rarity and number of perturbations.

    Example:
        >>> import torch
        >>> errors = ErrorMap.of(
        ...     torch.tensor([-12.0, -18.0, -25.0, -torch.inf]),
        ...     torch.tensor([-13.0, -21.0, -22.0, -30.0]),
        ...     torch.tensor([0, 0, 1, 1]),
        ...     width=10.0,
        ... )
        >>> [(c.edits, c.lowest, c.count, c.mean_error) for c in errors.cells]
        [(0, -20.0, 2, -2.0), (1, -30.0, 1, 3.0)]
        >>> [(r.edits, r.impossible, r.share_overestimated) for r in errors.rows]
        [(0, 0, 0.0), (1, 1, 1.0)]
    """

    width: float
    """Width of a range of true log-probability, nats."""
    cells: tuple[ErrorCell, ...]
    """Cells that hold a sequence, by edits and then from the rarest."""
    rows: tuple[ErrorRow, ...]
    """A row for each number of perturbations that occurs, in order."""

    @classmethod
    def of(
        cls,
        true_log_p: Tensor,
        model_log_p: Tensor,
        edits: Tensor,
        *,
        width: float,
        estimated: bool = False,
    ) -> Self:
        """Average errors by rarity and number of perturbations.

        Args:
            true_log_p: Log p_L in nats, shape ``(n,)``; ``-inf`` is a probability of 0.
            model_log_p: Log p_M in nats, shape ``(n,)``; ``-inf`` likewise.
            edits: Perturbations of each sequence, shape ``(n,)``, of integers.
            width: Width of a range of true log-probability, nats.
            estimated: Whether log p_M are estimates, of which one may be above 0.

        Raises:
            TypeError: If a log-probability is not floating-point, or ``edits`` is no
                tensor of integers.
            ValueError: If the shapes differ, a log-probability is NaN or above 0, a
                number of perturbations is negative, or the width is not above 0.
        """
        if not 0 < width < math.inf:
            raise ValueError(f"width must be above 0 and finite; got {width}")
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
        place = (true_log_p / width).floor()
        cells, rows = [], []
        for number in edits.unique().tolist():
            row = edits == number
            rows.append(_row(number, error[row], true_log_p[row] == -math.inf))
            finite = row & error.isfinite()
            cells += [
                ErrorCell(
                    edits=number,
                    lowest=k * width,
                    highest=(k + 1) * width,
                    count=int((inside := finite & (place == k)).sum()),
                    mean_error=error[inside].mean().item(),
                )
                for k in place[finite].unique().tolist()
            ]
        return cls(width, tuple(cells), tuple(rows))


def _row(edits: int, error: Tensor, impossible: Tensor) -> ErrorRow:
    """Return the row of sequences that were perturbed so often."""
    finite = error[error.isfinite()]
    return ErrorRow(
        edits=edits,
        count=len(error),
        impossible=int(impossible.sum()),
        ruled_out=int((error == -math.inf).sum()),
        mean_error=finite.mean().item() if len(finite) else math.nan,
        stderr=mean_stderr(finite).item() if len(finite) else math.inf,
        share_overestimated=(error > 0).double().mean().item(),
    )
