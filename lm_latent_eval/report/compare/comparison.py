"""Paired comparison of models on the same texts, task by task.

A side is a model, as one run or several. Texts are paired by digest, questions by their
name; units of one cluster count as one. Which side predicts the texts better is decided
where the difference exceeds its error *and* the kind of bound allows it: of two models,
the better one may be better than was found, and the worse one must not be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import pandas as pd
import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.paired import (
    FEWEST_TEXTS,
    PairedDifference,
)
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.questions import (
    CHANCE,
    QuestionComparison,
    compare_questions,
)
from lm_latent_eval.report.compare.sides import (
    DELTA,
    SUBTASK,
    TEXT,
    Clusters,
    Rates,
    Side,
    bits,
    check_alike,
    find_clusters,
    rate_in,
)
from lm_latent_eval.report.numbers import with_numbers
from lm_latent_eval.report.tables import with_error
from lm_latent_eval.report.units import Run


@dataclass(frozen=True)
class TextComparison:
    """Two models on the same texts."""

    task: str
    sides: tuple[Side, Side]
    units: dict[str, tuple[Rates, Rates, PairedDifference]]
    """Unit -> rates and their difference, nats a unit; only units that compare."""
    totals: dict[str, int]
    """Unit -> how many there are."""
    notes: tuple[str, ...]
    verdict: str
    decided: bool
    clusters: Clusters | None = None
    parts: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    """Each text's part of the difference, by ``name``: ``nats`` that A takes more than
    B, ``draws_stderr``, ``bytes``."""
    adjusted: float | None = None
    """Bonferroni's p-value, of several comparisons in this task."""
    level: float = DELTA
    """Risk of a false verdict, and that the interval does not hold."""

    @property
    def difference(self) -> PairedDifference:
        """In the first unit."""
        return next(iter(self.units.values()))[2]

    @property
    def is_equal(self) -> bool:
        """Whether rounding alone tells the numbers of every text apart."""
        floor = ROUNDING * self.parts["tokens"].clip(lower=1)
        return bool((self.parts["nats"].abs() <= floor).all())

    @property
    def metric(self) -> str:
        """Name of the rate in the first unit."""
        return rate_in(next(iter(self.units)))

    @property
    def scores(self) -> tuple[float, float]:
        """Rates of A and B in the first unit, bits."""
        a, b, _ = next(iter(self.units.values()))
        return bits(a.mean), bits(b.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the difference lies at 1 - ``level``, nats of the first unit."""
        return self.interval_in(next(iter(self.units)))

    def interval_in(self, unit: str) -> tuple[float, float]:
        """Return the interval in a unit: no further than if a side took nothing."""
        a, b, found = self.units[unit]
        low, high = found.interval_at(1 - self.level)
        if math.isinf(high - low):
            return low, high
        return max(low, -b.mean), min(high, a.mean)

    @property
    def p_value(self) -> float:
        """That the difference is 0; what bounds allow to say is apart from it."""
        return self.difference.p_value

    def at(self, level: float) -> TextComparison:
        """Decide at a level."""
        decided, verdict = _verdict(self, level)
        return replace(self, level=level, decided=decided, verdict=verdict)


Comparison = TextComparison | QuestionComparison


@dataclass(frozen=True)
class Asked:
    """Options of a comparison."""

    cluster: str | None = None
    """Which field says what texts are part of; ``none``: nothing; None: see
    ``find_clusters``."""
    power: float | None = None
    """Points of which a page says what decides them; None says nothing of it."""


def compare(
    sides: Mapping[str, Sequence[Sequence[Run]]], asked: Asked | None = None
) -> list[Comparison]:
    """Compare every two sides in every task that both have.

    Verdicts and intervals of three sides and more hold together, task by task: each is
    at 95 % over the number of pairs (Bonferroni).

    Args:
        sides: Name -> the runs of a model, each with its tasks.
        asked: What to compare; None is all by itself.

    Raises:
        ValueError: If they share no task, none of them has an accuracy or texts, texts
            are not the same, or numbers are of different units.
    """
    asked = asked or Asked()
    pairs = combinations(sides.items(), 2)
    return together(
        with_numbers(task for pair in pairs for task in _tasks(*pair, asked))
    )


def _tasks(
    a: tuple[str, Sequence[Sequence[Run]]],
    b: tuple[str, Sequence[Sequence[Run]]],
    asked: Asked,
) -> Iterator[Callable[[], Comparison]]:
    """Yield what compares two sides in a task, or in a group of them."""
    tasks = _shared_tasks(*a, *b)
    for task, (of_a, of_b) in tasks.items():
        yield partial(_pair, task, (a[0], of_a), (b[0], of_b), asked)
    for group, (all_a, all_b) in _groups(tasks, asked).items():
        left, right = Side.of(a[0], all_a), Side.of(b[0], all_b)
        yield partial(compare_questions, group, left, right, SUBTASK)


def together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Let verdicts and intervals of each task hold together, if there are several."""
    pairs = Counter(each.task for each in comparisons)
    return [
        each
        if (number := pairs[each.task]) == 1
        else replace(each.at(DELTA / number), adjusted=min(1.0, number * each.p_value))
        for each in comparisons
    ]


def first_of_tasks(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs of a result by task; of several metrics the first."""
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(run.task, run)
    return found


def _shared_tasks(
    name_a: str, a: Sequence[Sequence[Run]], name_b: str, b: Sequence[Sequence[Run]]
) -> dict[str, tuple[list[Run], list[Run]]]:
    def tasks(runs: Sequence[Sequence[Run]]) -> dict[str, list[Run]]:
        named = [first_of_tasks(run) for run in runs]
        shared = [task for task in named[0] if all(task in run for run in named)]
        return {task: [run[task] for run in named] for task in shared}

    of_a, of_b = tasks(a), tasks(b)
    if len(of_a) == len(of_b) == 1:  # files of estimates name no task
        [task], [runs_a], [runs_b] = of_a, of_a.values(), of_b.values()
        return {task: (runs_a, runs_b)}
    shared = {task: (of_a[task], of_b[task]) for task in of_a if task in of_b}
    if not shared:
        raise ValueError(
            f"{name_a} and {name_b} have no task in common: "
            f"{', '.join(of_a) or 'none'} there and {', '.join(of_b) or 'none'} here"
        )
    return shared


def _groups(
    tasks: Mapping[str, tuple[list[Run], list[Run]]], asked: Asked
) -> dict[str, tuple[list[Run], list[Run]]]:
    """Return the questions of groups of tasks, of which each is a cluster.

    A group needs as many tasks as a verdict takes clusters, and questions in all.
    """
    named: dict[str, list[str]] = {}
    for task, (runs, _) in tasks.items():
        for group in runs[0].settings.get("groups") or ():
            named.setdefault(group, []).append(task)
    found = {}
    for group, some in named.items():
        sides = [[tasks[task][side] for task in some] for side in (0, 1)]
        texts = any(run.is_of_texts for side in sides for runs in side for run in runs)
        if len(some) < FEWEST_TEXTS or texts or asked.cluster is not None:
            continue
        a, b = (
            [_joined(group, parts) for parts in zip(*side, strict=False)]
            for side in sides
        )
        found[group] = (a, b)
    return found


def _joined(group: str, parts: Sequence[Run]) -> Run:
    """Make one task of several, a cluster each."""
    units = [
        run.units.assign(
            unit=f"{run.task}/" + run.units["unit"],
            fields=[{**each, SUBTASK: run.task} for each in run.units["fields"]],
        )
        for run in parts
    ]
    done = all(run.finished for run in parts)
    return replace(
        parts[0], task=group, units=pd.concat(units, ignore_index=True), finished=done
    )


def _pair(
    task: str, a: tuple[str, list[Run]], b: tuple[str, list[Run]], asked: Asked
) -> Comparison:
    one, other = Side.of(*a), Side.of(*b)
    texts = [run.is_of_texts for run in (*a[1], *b[1])]
    if any(texts) and not all(texts):
        raise ValueError(
            f"{task}: {a[0]} or {b[0]} has log-likelihoods of texts, the other one "
            "scores of questions: they do not compare"
        )
    if not any(texts):
        return compare_questions(task, one, other, asked.cluster)
    done = one.finished and other.finished
    check_alike(one.name, one.runs[0], other.name, other.runs[0], done)
    return _texts(task, one, other, asked.cluster)


# -- texts ---------------------------------------------------------------------------


def _texts(task: str, a: Side, b: Side, cluster: str | None) -> TextComparison:
    shared = a.runs[0].units["unit"].isin({*b.runs[0].units["unit"]})
    texts = a.runs[0].units[shared]
    keys = texts["unit"].tolist()
    units = _units(a, b)
    totals = {u: int(texts[u].sum()) for u in units if texts[u].any()}
    if not totals:
        raise ValueError(
            f"{task}: the texts of {a.name} and {b.name} have no "
            f"{' and no '.join(units)}, so there is no rate to compare"
        )
    nats_a, nats_b = a.nats(keys), b.nats(keys)
    difference = nats_a.mean(0) - nats_b.mean(0)
    draws = torch.hypot(a.draws_stderr(keys), b.draws_stderr(keys))
    in_sums = torch.hypot(a.draws_in_sums(keys), b.draws_in_sums(keys))
    degrees = pooled_degrees([*a.draws_parts(keys), *b.draws_parts(keys)])
    too_high = math.hypot(a.too_high(keys), b.too_high(keys))
    clusters = _clusters(a, b, texts, cluster)
    found = {}
    for unit in totals:
        counts = torch.tensor(texts[unit].to_numpy())
        rates = [Rates.of(nats.sum(1) / totals[unit]) for nats in (nats_a, nats_b)]
        runs_stderr = math.hypot(rates[0].stderr, rates[1].stderr)
        found[unit] = (
            rates[0],
            rates[1],
            PairedDifference.of(
                difference,
                counts,
                draws_stderr=in_sums,
                draws_degrees=degrees,
                too_high=too_high,
                runs_stderr=runs_stderr,
                runs_degrees=pooled_degrees(rate.part for rate in rates),
                clusters=None if clusters is None else clusters.names,
            ),
        )
    parts = texts[["name", "bytes", "tokens"]].assign(
        nats=difference.numpy(), draws_stderr=draws.numpy()
    )
    compared = TextComparison(
        task,
        (a, b),
        found,
        totals,
        tuple(_notes(a, b)),
        verdict="",
        decided=False,
        clusters=clusters,
        parts=parts,
    )
    return compared.at(DELTA)


def _clusters(
    a: Side, b: Side, texts: pd.DataFrame, cluster: str | None
) -> Clusters | None:
    of_b = b.first_of("fields", texts["unit"])
    fields = [{**y, **x} for x, y in zip(texts["fields"], of_b, strict=True)]
    found = find_clusters(fields, cluster)
    if found is None and cluster is None and texts["digest"].duplicated().any():
        return Clusters(TEXT, texts["digest"].tolist())
    return found


def _units(a: Side, b: Side) -> tuple[str, ...]:
    """Return the units in which two models compare.

    Raises:
        ValueError: If there are none.
    """
    if a.strings_scored and b.strings_scored:
        return ("bytes", "words")
    vocabularies = {s.get("vocabulary") for side in (a, b) for s in side.settings}
    policies = {s.get("unk") for side in (a, b) for s in side.settings}
    if len(vocabularies) == len(policies) == 1 and vocabularies != {None}:
        return ("tokens",) if a.leaves_out or b.leaves_out else ("words",)
    blamed = " and ".join(side.name for side in (a, b) if not side.strings_scored)
    raise ValueError(
        f"{blamed} scored words of a vocabulary and not strings, and {a.name} and "
        f"{b.name} are not of one vocabulary: their word perplexities do not compare. "
        "Score with unk=spelled (`lm-latent-eval train spelling` adds that to a "
        "checkpoint), and bits per byte do"
    )


def _verdict(compared: TextComparison, level: float) -> tuple[bool, str]:
    (a, b), found = compared.sides, compared.difference
    total = next(iter(compared.totals.values()))
    better, worse = (a, b) if found.value < 0 else (b, a)
    gap = with_error(bits(abs(found.value)), bits(found.stderr))
    gap = f"{gap} {compared.metric}"
    says = f"{better.name} takes {gap} less than {worse.name}"
    if compared.is_equal:
        return False, (
            f"Equal: {a.name} and {b.name} differ by no more than rounding does on "
            f"each of {found.num_texts:,} texts."
        )
    if found.undecided:
        return False, f"Undecided: {says}; {found.undecided}."
    if found.undecided_at(1 - level):
        return False, f"Undecided: {says}; {CHANCE}."
    if not worse.is_known and worse.bound is not Bound.EXACT:
        return False, (
            f"Undecided: {says}, but {_kind(worse)}. {worse.name} may be the better "
            "model; more samples or a better proposal would show it."
        )
    if not better.is_known and better.bound is Bound.NONE:
        return False, f"Undecided: {says}, but {_kind(better)}."
    if found.margin_at(1 - level) <= better.slack(level) / total:
        return False, (
            f"Undecided: {says}, but {_kind(better)}, and the certificate of its draws "
            "takes more than the difference."
        )
    if better.is_known:
        return True, f"{better.name} predicts these texts better: {says}."
    return True, (
        f"{better.name} predicts these texts better, by at least that much: {says}, "
        f"and {_kind(better)}."
    )


_ONLY_BOUNDS = (Bound.STRICT_LOWER, Bound.ESTIMATED_LOWER)
"""Bounds that need no check of draws."""


def _kind(side: Side) -> str:
    """Say what a side's number is, where it is not the truth."""
    return {
        Bound.EXACT: f"the number of {side.name} is exact",
        Bound.STRICT_LOWER: f"the number of {side.name} is only a bound from above",
        Bound.STOCHASTIC_LOWER: f"the number of {side.name} is only a bound from above "
        "(on average over draws)",
        Bound.ESTIMATED_LOWER: f"the number of {side.name} estimates a bound from "
        "above, and is none itself",
        Bound.NONE: f"the number of {side.name} bounds nothing",
    }[side.bound]


def _notes(a: Side, b: Side) -> list[str]:
    notes = []
    tokens = [sorted({str(s.get("tokens_are")) for s in x.settings}) for x in (a, b)]
    if tokens[0] != tokens[1]:
        notes.append(
            f"Tokens of {a.name} are {' or '.join(tokens[0])}; of {b.name}, "
            f"{' or '.join(tokens[1])}: perplexities per token do not compare."
        )
    processes = [{str(s.get("process")) for s in x.settings} for x in (a, b)]
    networks = [{s.get("checkpoint") for s in x.settings} for x in (a, b)]
    if processes[0] != processes[1] and networks[0] == networks[1]:
        notes.append(
            f"{a.name} and {b.name} are one network under two processes "
            f"({' or '.join(sorted(processes[0]))}, and "
            f"{' or '.join(sorted(processes[1]))}): two models, and a bound of one is "
            "none of the other."
        )
    for side in (a, b):
        if not side.is_known and side.bound not in _ONLY_BOUNDS:
            notes.append(
                f"Some draws of {side.name} are not checked by a search: what they may "
                "have missed is in no error."
            )
        if not side.finished:
            notes.append(f"{side.name} is not finished: only its first texts compare.")
        if any(s.get("mass") == "sub-normalised" for s in side.settings):
            notes.append(
                f"{side.name} is sub-normalised: renormalised, it would take less."
            )
    return notes
