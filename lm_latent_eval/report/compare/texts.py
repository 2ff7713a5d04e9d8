"""Two models on the same texts, by their log-likelihoods.

Texts are paired by digest; those of one cluster count as one. Which side predicts them
better is decided where the difference exceeds its error *and* the kind of bound allows
it: of two models, the better one may be better than was found, and the worse one must
not be.
"""

from __future__ import annotations

import math

import pandas as pd
import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.comparison import (
    CHANCE,
    Comparison,
    Measure,
    Verdict,
)
from lm_latent_eval.report.compare.sides import (
    DELTA,
    TEXT,
    Clusters,
    Rates,
    Side,
    bits,
    check_alike,
    find_clusters,
)
from lm_latent_eval.report.tables import with_error
from lm_latent_eval.text.files import digest

NATS_A_BIT = math.log(2)


def compare_texts(
    task: str, a: Side, b: Side, cluster: str | None = None
) -> Comparison:
    """Compare two models on the texts that both have.

    Args:
        task: Its name.
        a: A model's log-likelihoods.
        b: Another's.
        cluster: As ``find_clusters`` takes it.

    Raises:
        ValueError: If they are of other texts, or have no unit in common.
    """
    check_alike(a.name, a.runs[0], b.name, b.runs[0], a.finished and b.finished)
    shared = a.runs[0].units["unit"].isin({*b.runs[0].units["unit"]})
    texts = a.runs[0].units[shared]
    keys = texts["unit"].tolist()
    common = _units(a, b)
    units = [unit for unit in common if texts[unit].any()]
    if not units:
        raise ValueError(
            f"{task}: the texts of {a.name} and {b.name} have no "
            f"{' and no '.join(common)}, so there is no rate to compare"
        )
    bits_a, bits_b = (side.nats(keys) / NATS_A_BIT for side in (a, b))
    difference = bits_a.mean(0) - bits_b.mean(0)
    in_sums = torch.hypot(a.draws_in_sums(keys), b.draws_in_sums(keys))
    degrees = pooled_degrees([*a.draws_parts(keys), *b.draws_parts(keys)])
    too_high = bits(math.hypot(a.too_high(keys), b.too_high(keys)))
    clusters = _clusters(a, b, texts, cluster)
    measures = {}
    for unit in units:
        total = int(texts[unit].sum())
        rates = Rates.of(bits_a.sum(1) / total), Rates.of(bits_b.sum(1) / total)
        found = PairedDifference.of(
            difference,
            torch.tensor(texts[unit].to_numpy()),
            draws_stderr=in_sums / NATS_A_BIT,
            draws_degrees=degrees,
            too_high=too_high,
            runs_stderr=math.hypot(rates[0].stderr, rates[1].stderr),
            runs_degrees=pooled_degrees(rate.part for rate in rates),
            clusters=None if clusters is None else clusters.names,
        )
        # A side that took nothing at all would be that far away.
        possible = -rates[1].mean, rates[0].mean
        name = f"bits a {unit.removesuffix('s')}"
        measures[name] = Measure(rates, found, possible)
    draws = torch.hypot(a.draws_stderr(keys), b.draws_stderr(keys)) / NATS_A_BIT
    parts = texts[["name", "bytes", "words", "tokens"]].assign(
        bits=difference.numpy(), draws_stderr=draws.numpy(), text=text_of(texts)
    )
    rounding = bits(ROUNDING) * parts["tokens"].clip(lower=1)
    return Comparison(
        task,
        (a, b),
        measures,
        _verdict,
        is_equal=bool((parts["bits"].abs() <= rounding).all()),
        clusters=clusters,
        notes=tuple(_notes(a, b)),
        parts=parts,
    ).at(DELTA)


def text_of(texts: pd.DataFrame) -> list[str]:
    """Return the texts themselves, where the data set's fields have them; else ""."""
    return [
        next(
            (text for text in fields.values() if digest(text) == wanted),
            fields.get("text", ""),
        )
        for fields, wanted in zip(texts["fields"], texts["digest"], strict=True)
    ]


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


def _verdict(compared: Comparison, level: float) -> Verdict:
    (a, b), found = compared.sides, compared.difference
    better, worse = (a, b) if found.value < 0 else (b, a)
    gap = f"{with_error(abs(found.value), found.stderr)} {compared.metric}"
    says = f"{better.name} takes {gap} less than {worse.name}"
    if compared.is_equal:
        return None, (
            f"Equal: {a.name} and {b.name} differ by no more than rounding does on "
            f"each of {found.num_texts:,} texts."
        )
    if found.undecided:
        return None, f"Undecided: {says}; {found.undecided}."
    if found.undecided_at(1 - level):
        return None, f"Undecided: {says}; {CHANCE}."
    if not worse.is_known and worse.bound is not Bound.EXACT:
        return None, (
            f"Undecided: {says}, but {_kind(worse)}. {worse.name} may be the better "
            "model; more samples or a better proposal would show it."
        )
    if not better.is_known and better.bound is Bound.NONE:
        return None, f"Undecided: {says}, but {_kind(better)}."
    total = compared.parts[f"{compared.metric.removeprefix('bits a ')}s"].sum()
    if found.margin_at(1 - level) <= bits(better.slack(level)) / total:
        return None, (
            f"Undecided: {says}, but {_kind(better)}, and the certificate of its draws "
            "takes more than the difference."
        )
    if better.is_known:
        return better.name, f"{better.name} predicts these texts better: {says}."
    return better.name, (
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
