"""The claims of LeBrun et al. (2022), checked on the numbers of a study.

Every verdict follows from numbers and their intervals: ``holds``, ``fails``, or
``undecided`` where an interval includes both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import torch
from torch import Tensor

from lm_latent_eval.distortion.columns import Columns
from lm_latent_eval.distortion.report.measures import Comparison
from lm_latent_eval.distortion.statistics import ErrorBin, ErrorMap
from lm_latent_eval.distortion.statistics.bins import FEWEST, Bins, equal_edges, places

TWO_SIDED = 1.96
"""Standard errors of a 95 % interval."""
INTERVALS = (
    "Intervals are of 95 % over sequences, for these models as they were trained: with "
    "another seed of the training they are other models, and that is not in it."
)
LATE = 3
"""Iterations at the end whose mean relative change is shown."""


class ClaimVerdict(StrEnum):
    """Verdict on a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"

    @classmethod
    def below(cls, lower: float, upper: float, bound: float = 0.0) -> ClaimVerdict:
        """Say whether a number with this interval is below a bound."""
        if upper < bound:
            return cls.HOLDS
        return cls.FAILS if lower > bound else cls.UNDECIDED

    @classmethod
    def both(cls, one: ClaimVerdict, other: ClaimVerdict) -> ClaimVerdict:
        """Return the conjunction of two verdicts."""
        if cls.FAILS in (one, other):
            return cls.FAILS
        return cls.HOLDS if one == other == cls.HOLDS else cls.UNDECIDED


@dataclass(frozen=True)
class ClaimCase:
    """One model with its verdict on a claim."""

    name: str
    verdict: ClaimVerdict
    numbers: str

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict} ({self.numbers})"


def underestimation(models: Mapping[str, Comparison]) -> list[ClaimCase]:
    """(i) Sequences of the language are underestimated: mean and majority."""
    cases = []
    for name, found in models.items():
        curve = found.curve(Bins.COUNT, 1)
        (whole,) = curve.bins
        share, spread = curve.share_underestimated, TWO_SIDED * curve.share_stderr
        mean = ClaimVerdict.below(*_own_interval(whole))
        most = ClaimVerdict.below(1 - share - spread, 1 - share + spread, 0.5)
        verdict = ClaimVerdict.both(mean, most)
        if not _is_known(found, whole):
            verdict = ClaimVerdict.UNDECIDED
        numbers = f"{_shown(whole)}, {100 * share:.1f} % of the sequences"
        cases.append(ClaimCase(name, verdict, numbers))
    return cases


def rarity(models: Mapping[str, Comparison]) -> list[ClaimCase]:
    """(ii) The less probable a sequence, the more: rarest against commonest tenth."""
    cases = []
    for name, found in models.items():
        bins = found.curve(Bins.COUNT, min(10, len(found.columns))).bins
        rarest, commonest = bins[0], bins[-1]
        (low, high), (least, most) = map(_own_interval, (rarest, commonest))
        verdict = ClaimVerdict.below(low - most, high - least)
        if not _is_known(found, rarest, commonest):
            verdict = ClaimVerdict.UNDECIDED
        numbers = f"{_shown(rarest)} against {_shown(commonest)}"
        cases.append(ClaimCase(name, verdict, numbers))
    return cases


def overestimation(
    maps: Mapping[str, ErrorMap], random: Mapping[str, Comparison]
) -> list[ClaimCase]:
    """(iii) Perturbed and random sequences are overestimated."""
    cases = []
    for name, error_map in maps.items():
        last = error_map.rows()[-1]
        mean, spread = last.mean_error, TWO_SIDED * last.stderr
        verdict = ClaimVerdict.below(-mean - spread, -mean + spread)
        number, said = last.num_finite, f"{mean:+.2f} ± {spread:.2f} nats"
        if 2 * last.num_finite < last.count:
            # Of most of them there is no error; whether it is above 0 is known of all.
            number, share = last.count, last.share_overestimated
            half = TWO_SIDED * math.sqrt(share * (1 - share) / last.count)
            verdict = ClaimVerdict.below(1 - share - half, 1 - share + half, 0.5)
            said = f"{100 * share:.1f} % of {last.count:,} sequences overestimated"
        if number < FEWEST:
            verdict = ClaimVerdict.UNDECIDED
        turned = next((r.edits for r in error_map.rows() if r.mean_error > 0), None)
        since = "never above 0" if turned is None else f"above 0 from {turned} on"
        higher, shared = _higher_at_equal_rarity(error_map)
        numbers = (
            f"{said} after {last.edits} perturbations, the mean {since}; of equal "
            f"rarity, higher than unperturbed in {higher} of {shared} cells"
        )
        cases.append(ClaimCase(f"{name}, perturbed", verdict, numbers))
    for name, found in random.items():
        (whole,) = found.curve(Bins.COUNT, 1).bins
        verdict = ClaimVerdict.below(-whole.upper, -whole.lower)
        if not whole.is_large:
            verdict = ClaimVerdict.UNDECIDED
        cases.append(ClaimCase(f"{name}, random", verdict, _shown(whole)))
    return cases


def more_data(trajectories: Mapping[str, Sequence[Columns]]) -> list[ClaimCase]:
    """(iv) More data lessens underestimation and does not end it."""
    cases = []
    for name, epochs in trajectories.items():
        first, last = _error(epochs[0]), _error(epochs[-1])
        lessened = ClaimVerdict.below(*_normal_interval(first - last))
        remains = ClaimVerdict.below(*_normal_interval(last))
        verdict = ClaimVerdict.both(lessened, remains)
        if len(last) < FEWEST:
            verdict = ClaimVerdict.UNDECIDED
        lower, upper = _normal_interval(last)
        numbers = (
            f"{first.mean():.2f} to {last.mean():.2f} ({lower:.2f} .. {upper:.2f})"
        )
        means = [_error(columns).mean().item() for columns in epochs]
        late = [(b - a) / abs(a) for a, b in pairwise(means)][-LATE:]
        if late:
            change = 100 * sum(late) / len(late)
            numbers += f", lately {change:+.1f} % an iteration"
        cases.append(ClaimCase(name, verdict, numbers))
    return cases


def low_entropy(models: Mapping[float, Comparison]) -> list[ClaimCase]:
    """(v) Languages of lower entropy are underestimated more, at equal probability."""
    cases = []
    for (low, colder), (high, warmer) in pairwise(sorted(models.items())):
        difference, stderr, shared = _difference_at_equal_rarity(colder, warmer)
        name = f"T = {low:g} against {high:g}"
        if not shared:
            said = "no probability that both have sequences of"
            cases.append(ClaimCase(name, ClaimVerdict.UNDECIDED, said))
            continue
        spread = TWO_SIDED * stderr
        verdict = ClaimVerdict.below(difference - spread, difference + spread)
        numbers = f"{difference:+.2f} ± {spread:.2f} nats over {shared} bins"
        cases.append(ClaimCase(name, verdict, numbers))
    return cases


def claims(
    models: Mapping[str, Comparison],
    maps: Mapping[str, ErrorMap],
    random: Mapping[str, Comparison],
    trajectories: Mapping[str, Sequence[Columns]],
    temperatures: Mapping[float, Comparison],
) -> str:
    """Return every claim with its verdicts, in Markdown."""
    found = {
        "(i) Sequences of the language are underestimated.": underestimation(models),
        "(ii) Less probable ones are underestimated more.": rarity(models),
        "(iii) Perturbed and random sequences are overestimated.": overestimation(
            maps, random
        ),
        "(iv) More training data lessens this (+) and does not end it.": more_data(
            trajectories
        ),
        "(v) It is worse for languages of lower entropy, at equal probability.": (
            low_entropy(temperatures)
        ),
    }
    lines = [f"- {name} {_summary(cases)}" for name, cases in found.items()]
    return "\n".join([INTERVALS, "", *lines])


def _own_interval(found: ErrorBin) -> tuple[float, float]:
    """Return the interval of a mean error without what its estimator accounts for."""
    return found.lower - found.estimator_bias, found.upper - found.estimator_bias


def _is_known(found: Comparison, *bins: ErrorBin) -> bool:
    """Whether errors below 0 can be distinguished from those of the estimator."""
    large = all(each.trusted and each.is_large for each in bins)
    return found.bias_is_known and large


def _shown(found: ErrorBin) -> str:
    """Write a mean error, with its interval where there is one."""
    if not found.is_large:
        return f"{found.mean_error:.2f} nats, of {found.count} sequences"
    return f"{found.mean_error:.2f} ({found.lower:.2f} .. {found.upper:.2f}) nats"


def _summary(cases: Sequence[ClaimCase]) -> str:
    held = sum(case.verdict is ClaimVerdict.HOLDS for case in cases)
    lines = [f"Holds for {held} of {len(cases)}:", *(f"  - {case}" for case in cases)]
    return "\n".join(lines)


def _higher_at_equal_rarity(error_map: ErrorMap) -> tuple[int, int]:
    """Compare perturbed with unperturbed sequences of one bin of true probability.

    Returns:
        In how many cells of the map the perturbed ones have the higher mean error, and
        how many there are that have unperturbed ones to compare with.
    """
    cells = [cell for cell in error_map.cells() if cell.count >= FEWEST]
    plain = {cell.lowest: cell.mean_error for cell in cells if cell.edits == 0}
    higher = [
        cell.mean_error > plain[cell.lowest]
        for cell in cells
        if cell.edits > 0 and cell.lowest in plain
    ]
    return sum(higher), len(higher)


def _difference_at_equal_rarity(
    colder: Comparison, warmer: Comparison
) -> tuple[float, float, int]:
    """Return the mean over shared bins of one mean error less the other.

    Returns:
        The difference in nats, its standard error, and how many bins are shared.
    """
    columns = colder.columns, warmer.columns
    edges = equal_edges(torch.cat([each.true_log_p for each in columns]), 50)
    moments = [_moments(each.true_log_p, _error(each), edges) for each in columns]
    shared = [
        (first, second)
        for first, second in zip(*moments, strict=True)
        if min(first[0], second[0]) >= FEWEST
    ]
    if not shared:
        return math.nan, math.nan, 0
    number = len(shared)
    difference = sum(first[1] - second[1] for first, second in shared) / number
    variance = sum(first[2] + second[2] for first, second in shared) / number**2
    return difference, math.sqrt(variance), number


def _moments(
    true_log_p: Tensor, error: Tensor, edges: Tensor
) -> list[tuple[int, float, float]]:
    """Return count, mean, and variance of the mean of the errors in each bin."""
    place = places(true_log_p, edges)
    found = []
    for number in range(len(edges) - 1):
        some = error[place == number]
        variance = some.var().item() / len(some) if len(some) > 1 else math.nan
        mean = some.mean().item() if len(some) else math.nan
        found.append((len(some), mean, variance))
    return found


def _normal_interval(values: Tensor) -> tuple[float, float]:
    """Return the 95 % interval of a mean."""
    mean, spread = values.mean().item(), values.std().item() / math.sqrt(len(values))
    return mean - TWO_SIDED * spread, mean + TWO_SIDED * spread


def _error(columns: Columns) -> Tensor:
    return columns.model_log_p - columns.true_log_p
