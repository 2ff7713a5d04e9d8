"""Compares models on the same texts, and says no more than the numbers hold.

A side is a model, as one run or several. Texts are paired by digest. Which side
predicts them better is decided where the difference exceeds its error *and* what the
numbers bound allows it: of two models, the better one may be better than was found, and
the worse one must not be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.estimators.degrees import pooled_degrees, widened
from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.report.compare.sides import DELTA, Side, check_alike
from lm_latent_eval.report.compare.writing import with_error
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record

SIGMAS = 1.96


@dataclass(frozen=True)
class Rates:
    """What a side takes, in nats a unit."""

    mean: float
    spread: float | None
    """Standard deviation over its runs; None of one run."""
    runs: int

    @property
    def stderr(self) -> float:
        """Of the mean, over runs."""
        return self.spread / math.sqrt(self.runs) if self.spread else 0.0

    @property
    def part(self) -> tuple[float, float]:
        """The same with its degrees of freedom."""
        return self.stderr, self.runs - 1.0


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


@dataclass(frozen=True)
class ChoiceComparison:
    """Two models on the same questions."""

    task: str
    sides: tuple[Side, Side]
    accuracy: PairedAccuracy
    uncertain: tuple[int, int]
    """Of the questions that A alone, and B alone, answers rightly, those where the
    draws could have decided otherwise."""
    ties: tuple[int, int]
    """Questions whose best options rounding alone tells apart, by A and by B: such an
    answer is right if every one of them is."""
    verdict: str
    decided: bool


Comparison = TextComparison | ChoiceComparison


def compare(sides: Mapping[str, Sequence[Sequence[Record]]]) -> list[Comparison]:
    """Compare every two sides in every task that both have.

    Args:
        sides: Name -> the runs of a model, each with its records.

    Raises:
        ValueError: If they share no task, texts are not the same, or numbers are of
            different units.
    """
    found = []
    for (name_a, runs_a), (name_b, runs_b) in combinations(sides.items(), 2):
        tasks = _shared_tasks(name_a, runs_a, name_b, runs_b)
        for task, (records_a, records_b) in tasks.items():
            a, b = Side.of(name_a, records_a), Side.of(name_b, records_b)
            found.append(_pair(task, a, b))
    if not (compared := [each for each in found if each is not None]):
        raise ValueError(
            "answers to questions compare one run with one: give each run as a side"
        )
    return compared


def _shared_tasks(
    name_a: str,
    a: Sequence[Sequence[Record]],
    name_b: str,
    b: Sequence[Sequence[Record]],
) -> dict[str, tuple[list[Record], list[Record]]]:
    def tasks(runs: Sequence[Sequence[Record]]) -> dict[str, list[Record]]:
        named = [{record.task: record for record in run} for run in runs]
        shared = [task for task in named[0] if all(task in run for run in named)]
        return {task: [run[task] for run in named] for task in shared}

    of_a, of_b = tasks(a), tasks(b)
    if len(of_a) == len(of_b) == 1:  # files of estimates name no task
        [task], [records_a], [records_b] = of_a, of_a.values(), of_b.values()
        return {task: (records_a, records_b)}
    shared = {task: (of_a[task], of_b[task]) for task in of_a if task in of_b}
    if not shared:
        raise ValueError(
            f"{name_a} and {name_b} have no task in common: "
            f"{', '.join(of_a) or 'none'} there and {', '.join(of_b) or 'none'} here"
        )
    return shared


def _pair(task: str, a: Side, b: Side) -> Comparison | None:
    check_alike(a.name, a.runs[0], b.name, b.runs[0], a.finished and b.finished)
    if all(answer.is_greedy is None for answer in a.runs[0].values()):
        return _by_upper_bounds(_texts(task, a, b))
    return _choices(task, a, b) if len(a.runs) == len(b.runs) == 1 else None


# -- texts ---------------------------------------------------------------------------


def _texts(task: str, a: Side, b: Side) -> TextComparison:
    shared = b.runs[0].keys()
    keys = [key for key in a.runs[0] if key in shared]
    units = _units(a, b)
    texts = [a.runs[0][key] for key in keys]
    totals = {unit: sum(getattr(text, unit) for text in texts) for unit in units}
    nats_a, nats_b = a.nats(keys), b.nats(keys)
    draws = torch.hypot(a.draws_stderr(keys), b.draws_stderr(keys))
    degrees = pooled_degrees([*a.draws_parts(keys), *b.draws_parts(keys)])
    too_high = math.hypot(a.too_high(keys), b.too_high(keys))
    found = {}
    for unit in units:
        counts = torch.tensor([getattr(text, unit) for text in texts])
        rates = [_rates(nats, totals[unit]) for nats in (nats_a, nats_b)]
        runs_stderr = math.hypot(rates[0].stderr, rates[1].stderr)
        found[unit] = (
            rates[0],
            rates[1],
            PairedDifference.of(
                nats_a.mean(0) - nats_b.mean(0),
                counts,
                draws_stderr=draws,
                draws_degrees=degrees,
                too_high=too_high,
                runs_stderr=runs_stderr,
                runs_degrees=pooled_degrees(rate.part for rate in rates),
            ),
        )
    unit = next(iter(found))
    decided, verdict = _verdict(a, b, unit, found[unit][2], totals[unit])
    return TextComparison(
        task, (a, b), found, totals, tuple(_notes(a, b)), verdict, decided
    )


def _by_upper_bounds(found: TextComparison) -> TextComparison:
    """Decide for a side where the other one is worse even at its upper bounds."""
    a, b = found.sides
    first, second, _ = next(iter(found.units.values()))
    a_is_worse = first.mean > second.mean
    worse = (a if a_is_worse else b).at_its_best
    if found.decided or worse is None:
        return found
    sides = (worse, b) if a_is_worse else (a, worse)
    again = _texts(found.task, *sides)
    first, second, _ = next(iter(again.units.values()))
    if not again.decided or (first.mean > second.mean) is not a_is_worse:
        return found
    verdict = (
        f"{again.verdict} That is {worse.name} at its upper bounds of log p, which "
        "hold on average over draws: it is not better."
    )
    return replace(found, verdict=verdict, decided=True)


def _rates(nats: Tensor, total: int) -> Rates:
    rates = nats.sum(1) / total
    spread = rates.std().item() if len(rates) > 1 else None
    return Rates(rates.mean().item(), spread, len(rates))


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


def _verdict(
    a: Side,
    b: Side,
    unit: str,
    found: PairedDifference,
    total: int,
) -> tuple[bool, str]:
    """Decide which side is better, if that can be known."""
    better, worse = (a, b) if found.value < 0 else (b, a)
    gap = f"{with_error(abs(found.value), found.stderr)} bits a {unit[:-1]}"
    says = f"{better.name} takes {gap} less than {worse.name}"
    if found.undecided:
        return False, f"Undecided: {says}; {found.undecided}."
    if not worse.is_known and worse.bound is not Bound.EXACT:
        return False, (
            f"Undecided: {says}, but {_kind(worse)}. {worse.name} may be the better "
            "model; more samples or a better proposal would show it."
        )
    if not better.is_known and better.bound is Bound.NONE:
        return False, f"Undecided: {says}, but {_kind(better)}."
    if found.margin <= better.slack / total:
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
"""What needs no check of draws: it is said to be a bound."""


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


# -- questions -----------------------------------------------------------------------


def _choices(task: str, a: Side, b: Side) -> ChoiceComparison:
    right_a, sure_a = _answers(a)
    right_b, sure_b = _answers(b)
    questions = [q for q in right_a if q in right_b]
    if not questions:
        raise ValueError(
            f"{task}: {a.name} and {b.name} have no question in common whose answer "
            "is right or wrong, so there is no accuracy to compare"
        )
    found = PairedAccuracy.of(
        torch.tensor([right_a[q] for q in questions]),
        torch.tensor([right_b[q] for q in questions]),
    )
    unsure = [q for q in questions if not (sure_a[q] and sure_b[q])]
    uncertain = (
        sum(right_a[q] and not right_b[q] for q in unsure),
        sum(right_b[q] and not right_a[q] for q in unsure),
    )
    better, worse = (a, b) if found.only_a > found.only_b else (b, a)
    won, lost = sorted((found.only_a, found.only_b), reverse=True)
    at_risk = uncertain[0] if better is a else uncertain[1]
    says = (
        f"{better.name} alone answers {won:,} of {len(questions):,} questions rightly, "
        f"{worse.name} alone {lost:,} (McNemar's p = {found.p_value:.2g})"
    )
    decided = False
    if found.p_value >= DELTA:
        verdict = f"Undecided: {says}."
    elif PairedAccuracy.split(won - at_risk, lost) >= DELTA:
        verdict = f"Undecided: {says}, {at_risk} of them within Monte Carlo error."
    else:
        decided, verdict = True, f"{better.name} answers more questions: {says}."
    ties = tuple(_count_tied(side, questions) for side in (a, b))
    return ChoiceComparison(
        task, (a, b), found, uncertain, (ties[0], ties[1]), verdict, decided
    )


def _count_tied(side: Side, questions: Sequence[int]) -> int:
    tied = {answer.index for answer in side.runs[0].values() if answer.tied}
    return len(tied & {*questions})


def _answers(side: Side) -> tuple[dict[int, bool], dict[int, bool]]:
    """Return, by question, whether it is right, and whether draws cannot change it."""
    options: dict[int, list[Answer]] = {}
    for answer in side.runs[0].values():
        options.setdefault(answer.index, []).append(answer)
    right, sure = {}, {}
    for question, answers in options.items():
        if answers[0].accuracy is None:
            continue
        tied = any(answer.tied for answer in answers)
        credit = answers[0].accuracy
        right[question] = credit >= 1 if tied else credit > 0.5
        estimates = (answer.estimate for answer in answers)
        first, *others = sorted(estimates, key=lambda e: e.log_evidence, reverse=True)
        sure[question] = all(
            first.log_evidence - other.log_evidence
            >= SIGMAS * _drawn_error(first, other)
            for other in others
        )
    return right, sure


def _drawn_error(one: Estimate, other: Estimate) -> float:
    """Return the error of a difference by the draws, nats."""
    parts = [(each.draws_stderr, each.draws_degrees) for each in (one, other)]
    return widened(math.hypot(*(error for error, _ in parts)), pooled_degrees(parts))
