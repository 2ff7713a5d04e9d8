r"""Estimation error by true log-probability and number of perturbations, streamed.

    m[e][k] = mean of error(x) over the sequences x, perturbed e times, with
              k * width <= log p_L(x) < (k + 1) * width

Sequences come in batches and are forgotten: what is kept is counts and sums of a cell,
so memory grows with the cells that are filled, not with the sequences. The bins of
log p_L are multiples of a width: no range need be known before.

Perturbed sequences can have probability zero, under the language or the model:

    log p_L    log p_M    error        here
    -inf       finite     +inf         ``impossible``; overestimated
    -inf       -inf       undefined    ``impossible``; no error
    finite     -inf       -inf         ``ruled_out``; underestimated
    finite     finite     finite       in a cell and in the row's mean

Infinite errors are counted and not averaged.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and figure 5.
"""

import math
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
        self._cells: dict[tuple[int, ...], Tensor] = {}
        """By edits and bin: count and summed errors."""
        self._rows: dict[tuple[int, ...], Tensor] = {}
        """By edits: all, impossible, ruled out, overestimated; errors, squares."""

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
        finite = error.isfinite()
        known = error.where(finite, 0)
        flags = (true_log_p == -math.inf, error == -math.inf, error > 0)
        columns = (torch.ones_like(error), *flags, known, known.square())
        _add(self._rows, edits[:, None], torch.stack([c.double() for c in columns], -1))
        bins = (true_log_p[finite] / self.width).floor().long()
        counted = torch.stack([torch.ones_like(known), known], -1)[finite]
        _add(self._cells, torch.stack([edits[finite], bins], -1), counted)

    def cells(self) -> tuple[ErrorCell, ...]:
        """Return the cells that hold a sequence, by edits and then from the rarest."""
        return tuple(
            ErrorCell(
                edits=edits,
                lowest=place * self.width,
                highest=(place + 1) * self.width,
                count=int(count),
                mean_error=total / count,
            )
            for (edits, place), sums in sorted(self._cells.items())
            for count, total in [sums.tolist()]
        )

    def rows(self) -> tuple[ErrorRow, ...]:
        """Return a row for each number of perturbations that occurs, in order."""
        found = []
        for (edits,), sums in sorted(self._rows.items()):
            count, impossible, ruled_out, over, total, squares = sums.tolist()
            finite = count - impossible - ruled_out
            mean = total / finite if finite else math.nan
            variance = math.inf
            if finite > 1:
                variance = max(0.0, squares - total * mean) / (finite - 1)
            row = ErrorRow(
                edits=edits,
                count=int(count),
                impossible=int(impossible),
                ruled_out=int(ruled_out),
                mean_error=mean,
                stderr=math.sqrt(variance / finite) if finite else math.inf,
                share_overestimated=over / count,
            )
            found.append(row)
        return tuple(found)


def _add(sums: dict[tuple[int, ...], Tensor], keys: Tensor, values: Tensor) -> None:
    """Add values, (n, columns), to the sums of their keys, (n, places of a key)."""
    if len(keys) == 0:
        return
    distinct, place = keys.unique(dim=0, return_inverse=True)
    found = values.new_zeros(len(distinct), values.shape[1])
    found.index_add_(0, place, values)
    for key, total in zip(map(tuple, distinct.tolist()), found, strict=True):
        sums[key] = sums[key] + total if key in sums else total
