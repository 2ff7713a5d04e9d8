"""Sides of a comparison: a model's answers to one task, paired by text, and clusters.

A side is one run or several. Texts and questions of one passage are not independent:
they are of one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.estimators import Bound, certificate_cost
from lm_latent_eval.report.units import Run

Numbers = NDArray[np.float64]


def bits(nats: float) -> float:
    """Return nats in bits."""
    return nats / math.log(2)


PASSAGES = (
    *("cluster", "passage_id", "section_id", "story_id", "article_id", "context_id"),
    *("passage", "context", "article", "paragraph", "story", "background"),
)
"""Fields of data sets that say so by themselves, where several questions share one."""
NONE = "none"
"""As a field: every text stands for itself."""
SUBTASK = "subtask"
TEXT = "text"
"""Texts that stand several times in a run: its copies are one."""


@dataclass(frozen=True)
class Clusters:
    """Which cluster each unit is in."""

    field: str
    names: Sequence[str]

    def __str__(self) -> str:
        """Describe the clusters."""
        return f"{len({*self.names}):,} clusters ({self.field})"


def find_clusters(
    fields: Sequence[Mapping[str, str]], field: str | None
) -> Clusters | None:
    """Find the clusters of units, if known and shared by several.

    Args:
        fields: What is known of each unit.
        field: Which to take; ``none`` is none, None the first of ``PASSAGES``, where
            a unit without it is in no other's cluster.

    Raises:
        ValueError: If a unit lacks the field that was asked for.
    """
    if field == NONE:
        return None
    if field is None:
        for name in PASSAGES:
            said = [each[name] for each in fields if name in each]
            if len({*said}) < len(said):
                some = enumerate(fields)
                return Clusters(name, [each.get(name, f"\0{n}") for n, each in some])
        return None
    known = [name for name in fields[0] if all(name in each for each in fields)]
    if field not in known:
        raise ValueError(
            f"--cluster {field}: not every text or question says its {field}; they say "
            f"{', '.join(known) or 'nothing'}. Sample logs of lm_eval (--log_samples), "
            "inspect's metadata and columns of a CSV have such fields"
        )
    return Clusters(field, [each[field] for each in fields])


@dataclass(frozen=True)
class Rates:
    """A side's rate by its runs: bits a unit, or a mean score."""

    mean: float
    spread: float | None
    """Standard deviation over its runs; None of one run."""
    runs: int

    @classmethod
    def of(cls, rates: Tensor) -> Self:
        """Take the rate of each run, (R,)."""
        spread = rates.std().item() if len(rates) > 1 else None
        return cls(rates.mean().item(), spread, len(rates))

    @property
    def stderr(self) -> float:
        """Of the mean, over runs."""
        return self.spread / math.sqrt(self.runs) if self.spread else 0.0

    @property
    def part(self) -> tuple[float, float]:
        """The same with its degrees of freedom."""
        return self.stderr, self.runs - 1.0


DELTA = 0.05
"""Risk that a stochastic bound is none."""


@dataclass(frozen=True)
class Side:
    """A model's units in one task, by one run or several."""

    name: str
    runs: Sequence[Run]

    @classmethod
    def of(cls, name: str, runs: Sequence[Run]) -> Self:
        """Join the runs of a model.

        Raises:
            ValueError: If they are not of the same texts, scores are no probabilities,
                or an answer to a question stands twice.
        """
        first, *others = runs
        for run in runs:
            twice = run.units.duplicated(["unit", "repeat"])
            if twice.any():
                unit = run.units["unit"][twice].iloc[0]
                raise ValueError(f"{name}: question {unit} of {run.task} stands twice")
        if not first.is_of_texts:
            return cls(name, runs)
        done = all(run.finished for run in runs)
        for run in others:
            if {*run.units["unit"]} != {*first.units["unit"]} and not done:
                raise ValueError(
                    f"a run of {name} is not finished, and runs of one side need the "
                    "same texts: repeat its command, which goes on, or leave it out"
                )
            check_alike(name, first, f"another run of {name}", run)
        found = cls(name, runs)
        if Bound.UNNORMALISED in found.units["bound"].array:
            raise ValueError(
                f"{name} has unnormalised scores, which are no probabilities: compare "
                "contrastive entropies"
            )
        return found

    @cached_property
    def units(self) -> pd.DataFrame:
        """The units of all runs, with the number of each one's run."""
        numbered = (run.units.assign(run=n) for n, run in enumerate(self.runs))
        return pd.concat([*numbered], ignore_index=True)

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Settings of each run."""
        return [run.settings for run in self.runs]

    @property
    def metric(self) -> str:
        """What units are scored by."""
        return self.runs[0].metric

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller score is better."""
        return self.runs[0].lower_is_better

    @property
    def finished(self) -> bool:
        """Whether every run is finished."""
        return all(run.finished for run in self.runs)

    def only(self, names: Sequence[str]) -> list[pd.DataFrame]:
        """Return the units of some names, each once and in that order, run by run."""
        return [run.units.set_index("unit").loc[[*names]] for run in self.runs]

    # -- questions ------------------------------------------------------------------

    def means(self, names: Sequence[str]) -> Numbers:
        """Return the mean score of each question, of each run, (R, N)."""
        by_run = self.units.groupby(["run", "unit"], sort=False)["score"].mean()
        rows = [by_run.loc[n].loc[[*names]] for n in range(len(self.runs))]
        return np.array(rows, dtype=float)

    def first_of(self, column: str, names: Sequence[str]) -> list[Any]:
        """Return a column of units, of the first answer to a question."""
        first = self.units.drop_duplicates("unit").set_index("unit")
        return [*first[column].loc[[*names]]]

    def share_of(self, flag: str, names: Sequence[str]) -> Numbers:
        """Return the share of each question's answers that have a flag, (N,)."""
        found = self.units.groupby("unit", sort=False)[flag].mean()
        return np.asarray(found.loc[[*names]], dtype=float)

    # -- texts ----------------------------------------------------------------------

    @property
    def strings_scored(self) -> bool:
        """Whether every word was spelled and every gap charged."""
        answers = [answer for run in self.runs for answer in run.answers]
        lost = any(a.unspelled or a.respaced or a.left_out for a in answers)
        return not lost and all(s.get("strings_scored", True) for s in self.settings)

    @property
    def leaves_out(self) -> bool:
        """Whether some words were not scored at all."""
        return any(answer.left_out for run in self.runs for answer in run.answers)

    @property
    def bound(self) -> Bound:
        """How its log-likelihood bounds the true one: the weakest of its texts."""
        return Bound.weakest(map(Bound, self.units["bound"].unique()))

    @property
    def is_known(self) -> bool:
        """Whether every text has an error: a search agrees with its draws.

        That of a bound is the bound's, 0 of a strict one: how far it is from log p,
        none says.
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

    def nats(self, names: Sequence[str]) -> Tensor:
        """Return -log p of each text by each run, nats, (R, N)."""
        rows = [-units["score"].to_numpy(dtype=float) for units in self.only(names)]
        return torch.from_numpy(np.stack(rows))

    def too_high(self, names: Sequence[str]) -> float:
        """Return nats by which it is likely to be too high in all, mean over runs.

        The bias of logarithms, and what draws have missed where a search has told: both
        have one direction, and add up over texts. An average of log-weights, which
        estimates a bound, is no logarithm and has no such bias.
        """
        some = self.units[self.units["unit"].isin({*names})]
        logarithms = some["draws_stderr"][some["bound"] != Bound.ESTIMATED_LOWER]
        parts = [*some["missed"], *(logarithms**2 / 2)]
        return math.fsum(parts) / len(self.runs)

    def draws_stderr(self, names: Sequence[str]) -> Tensor:
        """Return the error by the draws of each text's mean over runs, nats, (N,)."""
        rows = [units["draws_stderr"].to_numpy(float) for units in self.only(names)]
        return torch.from_numpy(np.sqrt(np.square(rows).sum(0)) / len(self.runs))

    def draws_in_sums(self, names: Sequence[str]) -> Tensor:
        """Return errors whose squares add up to that of the sum over texts, nats, (N,).

        Texts with the same draws err alike, so their errors add: the first of them is
        given all, the others 0.
        """
        total = np.zeros(len(names))
        for units in self.only(names):
            some = units.reset_index()
            stream = some["stream"].where(some["stream"] != "", some["unit"])
            together = some["draws_stderr"].groupby(stream).transform("sum")
            first = together.where(~stream.duplicated(), 0.0).to_numpy(dtype=float)
            total += np.square(first / len(self.runs))
        return torch.from_numpy(np.sqrt(total))

    def draws_parts(self, names: Sequence[str]) -> list[tuple[float, float]]:
        """Return the part of each text and run in those errors, degrees beside it."""
        every = pd.concat(self.only(names))
        parts = every["draws_stderr"] / len(self.runs)
        return [*zip(parts, every["draws_degrees"], strict=True)]


def check_alike(name_a: str, a: Run, name_b: str, b: Run, whole: bool = True) -> None:
    """Raise a ``ValueError`` unless two runs are of the same texts or questions.

    Args:
        name_a: Of the first run, for the error.
        a: The run.
        name_b: Of the second run.
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
