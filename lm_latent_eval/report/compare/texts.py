"""Two models on the same texts, by their log-likelihoods.

Texts are paired by digest; those of one cluster count as one. Which side predicts them
better is decided where the difference exceeds its error *and* the kind of bound allows
it: of two models, the better one may be better than was found, and the worse one must
not be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.comparison import (
    CHANCE,
    Comparison,
    Verdict,
)
from lm_latent_eval.report.compare.sides import (
    DELTA,
    TEXT,
    Side,
    bits,
    check_alike,
    find_clusters,
    run_errors,
    sampling_errors,
)
from lm_latent_eval.report.tables import with_error


def compare_texts(
    task: str, a: Side, b: Side, cluster: str | None = None
) -> Comparison:
    """Compare two models on the texts that both have.

    Args:
        task: Name of the task.
        a: A model's log-likelihoods.
        b: Another model's log-likelihoods.
        cluster: Field of the clusters, see ``find_clusters``.

    Raises:
        ValueError: If they are of other texts, or have no unit in common.
    """
    sides = a, b
    check_alike(a.name, a.runs[0], b.name, b.runs[0], a.finished and b.finished)
    of_b = b.runs[0].units.set_index("unit")
    texts = a.runs[0].units
    texts = texts[texts["unit"].isin(of_b.index)]
    keys = texts["unit"].tolist()
    unit = _unit(a, b)
    total = int(texts[unit].sum())
    if not total:
        raise ValueError(
            f"{task}: the texts of {a.name} and {b.name} have no {unit}, so there is "
            "no rate to compare"
        )
    pairs = zip(texts["fields"], of_b["fields"].loc[keys], strict=True)
    clusters = find_clusters([{**y, **x} for x, y in pairs], cluster)
    if clusters is None and cluster is None and texts["digest"].duplicated().any():
        clusters = texts["digest"].rename(TEXT)
    costs = [
        torch.from_numpy(-side.column("score", keys) / math.log(2)) for side in sides
    ]
    difference = costs[0].mean(0) - costs[1].mean(0)
    rates = costs[0].sum(1) / total, costs[1].sum(1) / total
    runs = [run_errors(each) for each in rates]
    paired = PairedDifference.of(
        difference,
        torch.tensor(texts[unit].to_numpy()),
        runs_stderr=math.hypot(*(error for error, _ in runs)),
        runs_degrees=pooled_degrees(runs),
        clusters=None if clusters is None else clusters.tolist(),
        **sampling_errors(sides, keys),
    )
    rounding = bits(ROUNDING) * texts["tokens"].clip(lower=1).to_numpy()
    return Comparison(
        task,
        sides,
        f"bits a {unit.removesuffix('s')}",
        rates,
        paired,
        # A side that took nothing at all would be that far away.
        (-rates[1].mean().item(), rates[0].mean().item()),
        total,
        _verdict,
        is_equal=bool((difference.abs().numpy() <= rounding).all()),
        clusters=clusters,
        notes=tuple(_notes(a, b)),
    ).at(DELTA)


def _unit(a: Side, b: Side) -> str:
    """Return the unit in which two models compare.

    Raises:
        ValueError: If there are none.
    """
    if a.strings_scored and b.strings_scored:
        return "bytes"
    vocabularies = {s.get("vocabulary") for side in (a, b) for s in side.settings}
    policies = {s.get("unk") for side in (a, b) for s in side.settings}
    if len(vocabularies) == len(policies) == 1 and vocabularies != {None}:
        return "tokens" if a.leaves_out or b.leaves_out else "words"
    blamed = " and ".join(side.name for side in (a, b) if not side.strings_scored)
    raise ValueError(
        f"{blamed} scored words of a vocabulary and not strings, and {a.name} and "
        f"{b.name} are not of one vocabulary: their word perplexities do not compare. "
        "Score with unk=spelled (`lm-latent-eval train spelling` adds that to a "
        "checkpoint), and bits per byte do"
    )


def _verdict(compared: Comparison, level: float) -> Verdict:
    (a, b), d = compared.sides, compared.difference
    better, worse = (a, b) if d.value < 0 else (b, a)
    gap = f"{with_error(abs(d.value), d.stderr)} {compared.metric}"
    says = f"{better.name} takes {gap} less than {worse.name}"
    if compared.is_equal:
        return None, (
            f"Equal: {a.name} and {b.name} differ by no more than rounding does on "
            f"each of {d.num_texts:,} texts."
        )
    doubt = None
    if d.undecided:
        doubt = f"; {d.undecided}"
    elif d.undecided_at(1 - level):
        doubt = f"; {CHANCE}"
    elif not worse.is_known and worse.bound is not Bound.EXACT:
        doubt = (
            f", but {_kind(worse)}. {worse.name} may be the better model; more samples "
            "or a better proposal would show it"
        )
    elif not better.is_known and better.bound is Bound.NONE:
        doubt = f", but {_kind(better)}"
    elif d.margin_at(1 - level) <= bits(better.slack(level)) / compared.num_units:
        doubt = (
            f", but {_kind(better)}, and the certificate of its draws takes more than "
            "the difference"
        )
    if doubt:
        return None, f"Undecided: {says}{doubt}."
    if better.is_known:
        return better.name, f"{better.name} predicts these texts better: {says}."
    return better.name, (
        f"{better.name} predicts these texts better, by at least that much: {says}, "
        f"and {_kind(better)}."
    )


_KINDS = {
    Bound.EXACT: "is exact",
    Bound.STRICT_LOWER: "is only a bound from above",
    Bound.STOCHASTIC_LOWER: "is only a bound from above (on average over draws)",
    Bound.ESTIMATED_LOWER: "estimates a bound from above, and is none itself",
    Bound.NONE: "bounds nothing",
}


def _kind(side: Side) -> str:
    return f"the number of {side.name} {_KINDS[side.bound]}"


def _notes(a: Side, b: Side) -> Iterator[str]:
    def values(name: str) -> list[list[str]]:
        return [sorted({str(s.get(name)) for s in x.settings}) for x in (a, b)]

    of_a, of_b = values("tokens_are")
    if of_a != of_b:
        yield (
            f"Tokens of {a.name} are {' or '.join(of_a)}; of {b.name}, "
            f"{' or '.join(of_b)}: perplexities per token do not compare."
        )
    of_a, of_b = values("process")
    networks = values("checkpoint")
    if of_a != of_b and networks[0] == networks[1]:
        yield (
            f"{a.name} and {b.name} are one network under two processes "
            f"({' or '.join(of_a)}, and {' or '.join(of_b)}): two models, and a bound "
            "of one is none of the other."
        )
    for side in (a, b):
        # Bounds that no search checks, and that need none.
        checked = side.bound in (Bound.STRICT_LOWER, Bound.ESTIMATED_LOWER)
        if not side.is_known and not checked:
            yield (
                f"Some draws of {side.name} are not checked by a search: what they may "
                "have missed is in no error."
            )
        if not side.finished:
            yield f"{side.name} is not finished: only its first texts compare."
        if any(s.get("mass") == "sub-normalised" for s in side.settings):
            yield (f"{side.name} is sub-normalised: renormalised, it would take less.")
