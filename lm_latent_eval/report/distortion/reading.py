"""Saved columns as measurements need them: what is compared, and what cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lm_latent_eval.distortion.columns import Columns, Scores, Trajectory
from lm_latent_eval.estimators import ErrorCurve, ErrorTrajectory
from lm_latent_eval.estimators.bins import Bins


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

    @classmethod
    def of(cls, columns: Columns) -> Comparison:
        """Divide columns.

        Raises:
            ValueError: If no sequence has a finite error.
        """
        ruled_out = ~columns.impossible & (columns.model_log_p == -torch.inf)
        finite = columns[~columns.impossible & ~ruled_out]
        if not len(finite):
            raise ValueError(
                f"none of {len(columns)} sequences is possible under both the language "
                "and the model: there is no error to average"
            )
        return cls(finite, int(columns.impossible.sum()), int(ruled_out.sum()))

    @classmethod
    def open(cls, directory: Path, edits: int | None = 0) -> Comparison:
        """Read a folder of scores; those of so many perturbations, or all (None)."""
        columns = Scores.open(directory).columns()
        return cls.of(columns if edits is None else columns[columns.edits == edits])

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
