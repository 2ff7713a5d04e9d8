"""Loading of saved columns for measurements, with checks of comparability."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lm_latent_eval.distortion.columns import Columns, ScoresFolder, Trajectory
from lm_latent_eval.distortion.statistics import ErrorCurve, ErrorTrajectory
from lm_latent_eval.distortion.statistics.bins import Bins
from lm_latent_eval.estimators import Bound


@dataclass(frozen=True)
class Comparison:
    """Scored sequences whose errors are finite, and how many are not.

    An error is a difference of logarithms: it has no value where the language never
    utters a sequence, or the model rules it out. Such sequences are counted here and
    stand in no mean.
    """

    columns: Columns
    impossible: int
    """Sequences of probability zero under the language."""
    ruled_out: int
    """Possible sequences of probability zero under the model."""
    bound: Bound = Bound.EXACT
    """On which side of the model's own log-probabilities the columns have them."""

    @classmethod
    def of(cls, columns: Columns, bound: Bound = Bound.EXACT) -> Comparison:
        """Divide columns.

        Raises:
            ValueError: If no sequence has a finite error.
        """
        ruled_out = ~columns.impossible & (columns.model_log_p == -torch.inf)
        finite = columns[~columns.impossible & ~ruled_out]
        if not len(finite):
            raise ValueError(
                f"none of {len(columns)} sequences is possible under both the language "
                "and the model, so there is no error to average (what is random or "
                "perturbed suits languages that rule nothing out, as causal LMs)"
            )
        impossible = int(columns.impossible.sum())
        return cls(finite, impossible, int(ruled_out.sum()), bound)

    @classmethod
    def open(cls, directory: Path, edits: int | None = 0) -> Comparison:
        """Read a folder of scores; those of so many perturbations, or all (None).

        Raises:
            ValueError: If it is none, or no sequence has a finite error.
        """
        scores = ScoresFolder.open(directory)
        parts = [
            each if edits is None else each[each.edits == edits]
            for each in scores.batches()
        ]
        try:
            return cls.of(Columns.cat(parts), Bound(scores.settings["bound"]))
        except ValueError as err:
            raise ValueError(f"{directory}: {err}") from err

    @property
    def bias_is_known(self) -> bool:
        """Whether standard errors say how far estimates are off: a beam has none."""
        return self.bound is not Bound.STRICT_LOWER

    def curve(self, bins: Bins = Bins.WIDTH, num_bins: int = 50) -> ErrorCurve:
        """Return the mean error by true log-probability."""
        found = self.columns
        return ErrorCurve.of(
            found.true_log_p,
            found.model_log_p,
            stderr=found.stderr,
            bins=bins,
            num_bins=num_bins,
        )

    @property
    def left_out(self) -> str:
        """Say what has no error, and which sequences are beginnings; "" if none."""
        cut = int((~self.columns.ended).sum())
        said = {
            "impossible under the language (in no mean)": self.impossible,
            "ruled out by the model (in no mean)": self.ruled_out,
            "cut at the maximum length (compared as beginnings)": cut,
        }
        return ", ".join(f"{count:,} {what}" for what, count in said.items() if count)


def open_trajectory(directory: Path, num_bins: int = 50) -> tuple[ErrorTrajectory, int]:
    """Read a trajectory, and the sequences of training an epoch.

    Raises:
        ValueError: If it is none, or a model or language gives probability zero.
    """
    folder = Trajectory.open(directory)
    epochs = folder.epochs()
    model_log_p = torch.stack([columns.model_log_p for columns in epochs])
    found = ErrorTrajectory.of(epochs[0].true_log_p, model_log_p, num_bins=num_bins)
    return found, int(folder.settings["sequences_an_epoch"])
