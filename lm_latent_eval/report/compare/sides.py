"""Sides of a comparison: a model's units in one task, paired by name, and clusters.

A side is one run or several. Texts and questions of one passage are not independent:
they are of one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.estimators import Bound, certificate_cost
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.units import Run

PASSAGES = (
    *("cluster", "passage_id", "section_id", "story_id", "article_id", "context_id"),
    *("passage", "context", "article", "paragraph", "story", "background"),
)
"""Fields of data sets that are clusters by themselves, if several questions share one.
"""
NONE = "none"
"""Value of ``--cluster`` with which every text stands for itself."""
TEXT = "text"
"""Name of the clusters of copies: texts that stand several times in a run."""
DELTA = 0.05
"""Risk that a stochastic bound is none."""


def bits(nats: float) -> float:
    return nats / math.log(2)


def find_clusters(
    fields: Sequence[Mapping[str, str]], field: str | None
) -> pd.Series | None:
    """Find the cluster of each unit, if known and shared by several.

    Args:
        fields: Fields of each unit.
        field: The one to take; ``none`` is none, None the first of ``PASSAGES``, where
            a unit without it is in a cluster of its own.

    Raises:
        ValueError: If a unit lacks the field that was asked for.
    """
    if field == NONE:
        return None
    table = pd.DataFrame([*fields], dtype=object)
    if field is None:
        for name in PASSAGES:
            if name in table and table[name].dropna().duplicated().any():
                alone = pd.Series([f"\0{n}" for n in range(len(table))])
                return table[name].fillna(alone)
        return None
    shared = table.columns[table.notna().all()]
    if field not in shared:
        raise ValueError(
            f"--cluster {field}: not every text or question says its {field}; they say "
            f"{', '.join(shared) or 'nothing'}. Sample logs of lm_eval "
            "(--log_samples), inspect's metadata and columns of a CSV have such fields"
        )
    return table[field]


@dataclass(frozen=True)
class Side:
    """A model's units in one task, by one run or several."""

    name: str
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        first, *others = self.runs
        twice = self.units.duplicated(["run", "unit", "repeat"])
        if twice.any():
            unit = self.units["unit"][twice].iloc[0]
            raise ValueError(
                f"{self.name}: question {unit} of {first.task} stands twice"
            )
        if not first.is_of_texts:
            return
        for run in others:
            if {*run.units["unit"]} != {*first.units["unit"]} and not self.finished:
                raise ValueError(
                    f"a run of {self.name} is not finished, and runs of one side need "
                    "the same texts: repeat its command, which goes on, or leave it out"
                )
            check_alike(self.name, first, f"another run of {self.name}", run)
        if self.bound is Bound.UNNORMALISED:
            raise ValueError(
                f"{self.name} has unnormalised scores, which are no probabilities: "
                "compare contrastive entropies"
            )

    @cached_property
    def units(self) -> pd.DataFrame:
        """Units of all runs, with the index of each one's ``run``."""
        indexed = (run.units.assign(run=n) for n, run in enumerate(self.runs))
        return pd.concat([*indexed], ignore_index=True)

    @property
    def settings(self) -> list[dict[str, Any]]:
        return [run.settings for run in self.runs]

    @property
    def lower_is_better(self) -> bool:
        return self.runs[0].lower_is_better

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    def column(self, name: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return a column of some texts, a row a run; (R, N)."""
        tables = [run.units.set_index("unit")[name] for run in self.runs]
        return np.array([table.loc[[*texts]] for table in tables], dtype=float)

    @property
    def strings_scored(self) -> bool:
        """Whether every word was spelled and every gap charged."""
        answers = [answer for run in self.runs for answer in run.answers]
        lost = any(a.unspelled or a.respaced or a.left_out for a in answers)
        return not lost and all(s.get("strings_scored", True) for s in self.settings)

    @property
    def leaves_out(self) -> bool:
        return any(answer.left_out for run in self.runs for answer in run.answers)

    @property
    def bound(self) -> Bound:
        return Bound.weakest(map(Bound, self.units["bound"].unique()))

    @property
    def is_known(self) -> bool:
        """Whether every text has an error: a search agrees with its draws.

        The error of a bound, 0 of a strict one, is none of log p.
        """
        return self.bound not in (Bound.ESTIMATED_LOWER, Bound.STRICT_LOWER) and not (
            self.units["error"].isna().any()
        )

    def slack(self, delta: float = DELTA) -> float:
        """Return nats by which its bound is wrong with probability delta (Markov)."""
        if self.is_known or self.bound is not Bound.STOCHASTIC_LOWER:
            return 0.0
        copies = max(run.units["stream"].value_counts().max() for run in self.runs)
        return certificate_cost(
            1 - delta, num_configurations=len(self.runs), multiplicity=int(copies)
        )


def sampling_errors(sides: Sequence[Side], texts: Sequence[str]) -> dict[str, Any]:
    """Return what ``PairedDifference.of`` takes of the draws of all sides, in bits.

    Squares of ``draws_stderr`` add up to that of the sum over texts. Texts with the
    same draws err alike, so their errors add: the first of them is given all.

    ``too_high`` is the bias of logarithms, and what draws have missed where a search
    has told: both have one direction, and add up over texts. An average of log-weights,
    which estimates a bound, is no logarithm and has no such bias.
    """
    squares, too_high = np.zeros(len(texts)), list[float]()
    parts = list[tuple[float, float]]()
    for side in sides:
        num_runs = len(side.runs)
        units = side.units[side.units["unit"].isin({*texts})]
        for _, run in units.groupby("run"):
            one = run.set_index("unit").loc[[*texts]].reset_index()
            stream = one["stream"].where(one["stream"] != "", one["unit"])
            together = one["draws_stderr"].groupby(stream).transform("sum")
            first = together.where(~stream.duplicated(), 0.0).to_numpy(dtype=float)
            squares += np.square(first / num_runs)
        parts += zip(
            units["draws_stderr"] / num_runs, units["draws_degrees"], strict=True
        )
        logarithms = units["draws_stderr"][units["bound"] != Bound.ESTIMATED_LOWER]
        too_high.append(math.fsum([*units["missed"], *logarithms**2 / 2]) / num_runs)
    return {
        "draws_stderr": torch.from_numpy(np.sqrt(squares) / math.log(2)),
        "draws_degrees": pooled_degrees(parts),
        "too_high": bits(math.hypot(*too_high)),
    }


def run_errors(rates: Tensor) -> tuple[float, float]:
    """Return the error of a mean over runs, and its degrees of freedom."""
    spread = rates.std().item() if len(rates) > 1 else 0.0
    return spread / math.sqrt(len(rates)), len(rates) - 1.0


def check_alike(name_a: str, a: Run, name_b: str, b: Run, whole: bool = True) -> None:
    """Raise a ``ValueError`` unless two runs are of the same texts or questions.

    Args:
        name_a: Name of the first run, for the error.
        a: The run.
        name_b: Name of the second run.
        b: The run.
        whole: Whether both are finished: of others, what both have is compared.
    """
    of_a, of_b = {*a.units["unit"]}, {*b.units["unit"]}
    what = "texts" if a.is_of_texts else "questions"
    if not of_a & of_b or (whole and of_a != of_b):
        raise ValueError(
            f"{name_a} has {len(of_a):,} {what} and {name_b} {len(of_b):,}, of which "
            f"{len(of_a & of_b):,} are the same: only models that scored the same "
            f"{what} compare (the same --tasks, --limit and files)"
        )
