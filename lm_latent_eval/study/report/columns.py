"""Results of a study, grouped by proposal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.study.rows import Row, read
from lm_latent_eval.study.run import ROWS_FILE, read_settings

Curve = tuple[str, float]
"""A proposal and a temperature, whose estimates are a curve over sample sizes."""


@dataclass(frozen=True)
class StudyColumn:
    """One model with one proposal that was drawn from at every temperature."""

    settings: dict[str, Any]
    """What the study's numbers depend on."""
    rows: list[Row]
    """All of the study."""
    proposal: str

    @property
    def title(self) -> str:
        """Model and proposal."""
        return f"{self.settings['model']}, {self.proposal}"

    @property
    def num_samples(self) -> int:
        """K, all samples of a text."""
        return int(self.settings["num_samples"])

    @property
    def curves(self) -> list[Curve]:
        """Proposals and temperatures that belong into this column."""
        done = {(row["proposal"], row["temperature"]) for row in self.drawn()}
        tempered = [(self.proposal, t) for t in self.settings["temperatures"]]
        others = [(name, 1.0) for name in self.settings["others"]]
        return [curve for curve in tempered + others if curve in done]

    def drawn(self, **having: Any) -> list[Row]:
        """Return the rows of draws that have these values, by number of samples."""
        return self._having(estimator="is", **having)

    def curve(self, curve: Curve, level: str = "instance") -> list[Row]:
        """Return the estimates of one proposal and temperature."""
        return self.drawn(proposal=curve[0], temperature=curve[1], level=level)

    def last(self, curve: Curve, level: str = "instance") -> float:
        """Return the perplexity from all samples."""
        return float(self.curve(curve, level)[-1]["perplexity"])

    def beams(self) -> list[Row]:
        """Return the beams that follow this proposal, by width."""
        return self._having(estimator="beam", proposal=self.proposal)

    def _having(self, **having: Any) -> list[Row]:
        found = (row for row in self.rows if having.items() <= row.items())
        return sorted(found, key=lambda row: int(row["num_samples"]))


def read_columns(study: Path) -> list[StudyColumn]:
    """Read a study, a column a tempered proposal."""
    settings, rows = read_settings(study), read(study / ROWS_FILE)
    columns = [StudyColumn(settings, rows, name) for name in settings["tempered"]]
    return [column for column in columns if column.curves]


def values_of(rows: list[Row], name: str) -> Any:
    """Read numbers of rows; infinite ones are strings there, and gaps in a line."""
    values = np.array([row[name] for row in rows], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)
