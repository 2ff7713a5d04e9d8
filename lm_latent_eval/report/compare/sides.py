"""Sides of a comparison: a model's answers to one task, paired by text, and clusters.

A side is one run or several. Texts and questions of one passage are not independent:
they are of one cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, certificate_cost
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Document, Record


def with_error(nats: float, stderr: float, sign: str = "") -> str:
    """Write bits with two digits of their error."""
    error = bits(stderr)
    places = 4
    if 0 < error < math.inf:
        places = max(1 - math.floor(math.log10(error)), 0)
    return f"{bits(nats):{sign}.{places}f} ± {error:.{places}f}"


def bits(nats: float) -> float:
    """Return nats in bits."""
    return nats / math.log(2)


def rate_in(unit: str) -> str:
    """Return the name of a rate: "bits a byte" in bytes."""
    return f"bits a {unit.removesuffix('s')}"


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
    """A side's rate by its runs: nats a unit, or a mean score."""

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

Key = tuple[str, int]
"""A text's digest, and which of its copies it is."""


@dataclass(frozen=True)
class Side:
    """A model's answers to one task, by one run or several."""

    name: str
    runs: Sequence[dict[Key, Answer]]
    settings: Sequence[dict[str, Any]]
    finished: bool = True
    documents: Mapping[Key, Document] = field(default_factory=dict)
    """Further facts about its texts."""

    @classmethod
    def of(cls, name: str, runs: Sequence[Record]) -> Side:
        """Join the runs of a model.

        Raises:
            ValueError: If they are not of the same texts, or scores are no
                probabilities.
        """
        found = [_by_text(run.answers) for run in runs]
        for run in found[1:]:
            if run.keys() != found[0].keys() and not all(r.finished for r in runs):
                raise ValueError(
                    f"a run of {name} is not finished, and runs of one side need the "
                    "same texts: repeat its command, which goes on, or leave it out"
                )
            check_alike(name, found[0], f"another run of {name}", run)
        if any(a.estimate.bound is Bound.UNNORMALISED for r in runs for a in r.answers):
            raise ValueError(
                f"{name} has unnormalised scores, which are no probabilities: compare "
                "contrastive entropies"
            )
        documents = {
            key: run.documents[answer.index]
            for run, answers in zip(runs, found, strict=True)
            for key, answer in answers.items()
            if answer.index in run.documents
        }
        return cls(
            name,
            found,
            [r.settings for r in runs],
            all(r.finished for r in runs),
            documents,
        )

    def about(self, key: Key) -> Document:
        """Return what is known of a text; nothing, perhaps."""
        return self.documents.get(key) or Document("")

    @property
    def strings_scored(self) -> bool:
        """Whether every word was spelled and every gap charged."""
        answers = [answer for run in self.runs for answer in run.values()]
        lost = any(a.unspelled or a.respaced or a.left_out for a in answers)
        return not lost and all(s.get("strings_scored", True) for s in self.settings)

    @property
    def leaves_out(self) -> bool:
        """Whether some words were not scored at all."""
        return any(answer.left_out for run in self.runs for answer in run.values())

    @property
    def bound(self) -> Bound:
        """How its log-likelihood bounds the true one: the weakest of its texts."""
        return Bound.weakest(
            answer.estimate.bound for run in self.runs for answer in run.values()
        )

    @property
    def is_known(self) -> bool:
        """Whether every text has an error: a search agrees with its draws.

        That of a bound is the bound's, 0 of a strict one: how far it is from log p,
        none says.
        """
        return self.bound not in (Bound.ESTIMATED_LOWER, Bound.STRICT_LOWER) and all(
            answer.estimate.stderr is not None
            for run in self.runs
            for answer in run.values()
        )

    def slack(self, delta: float = DELTA) -> float:
        """Return nats by which its bound is wrong with probability delta (Markov)."""
        if self.is_known or self.bound is not Bound.STOCHASTIC_LOWER:
            return 0.0
        copies = max(
            max(Counter(answer.stream for answer in run.values()).values())
            for run in self.runs
        )
        return certificate_cost(
            1 - delta, num_configurations=len(self.runs), multiplicity=copies
        )

    def nats(self, keys: Sequence[Key]) -> Tensor:
        """Return -log p of each text by each run, nats, (R, N)."""
        rows = [[-run[key].estimate.log_evidence for key in keys] for run in self.runs]
        return torch.tensor(rows, dtype=torch.float64)

    def too_high(self, keys: Sequence[Key]) -> float:
        """Return nats by which it is likely to be too high in all, mean over runs.

        The bias of logarithms, and what draws have missed where a search has told: both
        have one direction, and add up over texts. An average of log-weights, which
        estimates a bound, is no logarithm and has no such bias.
        """
        estimates = [run[key].estimate for run in self.runs for key in keys]
        missed = (e.missed or 0.0 for e in estimates)
        logarithms = (e for e in estimates if e.bound is not Bound.ESTIMATED_LOWER)
        bias = (e.draws_stderr**2 / 2 for e in logarithms)
        return math.fsum([*missed, *bias]) / len(self.runs)

    def draws_stderr(self, keys: Sequence[Key]) -> Tensor:
        """Return the error by the draws of each text's mean over runs, nats, (N,)."""
        errors = [error for error, _ in self.draws_parts(keys)]
        by_run = torch.tensor(errors, dtype=torch.float64).view(len(self.runs), -1)
        return by_run.square().sum(0).sqrt()

    def draws_in_sums(self, keys: Sequence[Key]) -> Tensor:
        """Return errors whose squares add up to that of the sum over texts, nats, (N,).

        Texts with the same draws err alike, so their errors add: the first of them is
        given all, the others 0.
        """
        total = torch.zeros(len(keys), dtype=torch.float64)
        for run in self.runs:
            first: dict[str, int] = {}
            errors = torch.zeros_like(total)
            for place, key in enumerate(keys):
                answer = run[key]
                at = first.setdefault(answer.stream or f"text {place}", place)
                errors[at] += answer.estimate.draws_stderr / len(self.runs)
            total += errors.square()
        return total.sqrt()

    def draws_parts(self, keys: Sequence[Key]) -> list[tuple[float, float]]:
        """Return the part of each text and run in those errors, degrees beside it."""
        estimates = (run[key].estimate for run in self.runs for key in keys)
        return [(e.draws_stderr / len(self.runs), e.draws_degrees) for e in estimates]


def _by_text(answers: Sequence[Answer]) -> dict[Key, Answer]:
    seen: Counter[str] = Counter()
    found = {}
    for answer in answers:
        found[answer.text, seen[answer.text]] = answer
        seen[answer.text] += 1
    return found


def check_alike(
    name_a: str,
    a: dict[Key, Answer],
    name_b: str,
    b: dict[Key, Answer],
    whole: bool = True,
) -> None:
    """Raise a ``ValueError`` unless two runs are of the same texts.

    Args:
        name_a: Of the first run, for the error.
        a: Its answers.
        name_b: Of the second run.
        b: Its answers.
        whole: Whether both are finished: of others, what both have is compared.
    """
    shared = a.keys() & b.keys()
    if not shared or (whole and a.keys() != b.keys()):
        raise ValueError(
            f"{name_a} has {len(a):,} texts and {name_b} {len(b):,}, of which "
            f"{len(shared):,} are the same: only models that scored the same texts "
            "compare (the same --tasks, --limit and files)"
        )
