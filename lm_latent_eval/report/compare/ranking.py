"""Several models in order, with the groups that cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from lm_latent_eval.estimators.paired import groups
from lm_latent_eval.report.compare.comparison import Comparison, TextComparison
from lm_latent_eval.report.compare.writing import bits


@dataclass(frozen=True)
class Ranking:
    """Models in the order of their numbers in one task, the best one first."""

    task: str
    metric: str
    models: Sequence[tuple[str, float]]
    """Name and number: bits a byte, or a mean score."""
    groups: Sequence[tuple[str, ...]]
    """The largest sets of which no two were told apart."""
    pairs: Sequence[Comparison]

    @property
    def letters(self) -> dict[str, str]:
        """A letter a group: models that share one are not told apart."""
        marks = {
            ascii_lowercase[n % 26] * (n // 26 + 1): some
            for n, some in enumerate(self.groups)
        }
        return {
            name: "".join(mark for mark, some in marks.items() if name in some)
            for name, _ in self.models
        }

    @property
    def verdict(self) -> str:
        """Say in a sentence what holds."""
        decided = sum(pair.decided for pair in self.pairs)
        ends = [pair for pair in self.pairs if pair.decided]
        best = self.models[0][0]
        beaten = {n for pair in ends for n in _names(pair) if best in _names(pair)}
        behind = beaten - {best}
        if len(behind) == len(self.models) - 1:
            first = f"{best} is better than every other model"
        elif behind:
            rest = [n for n, _ in self.models[1:] if n not in behind]
            first = f"{best} is first, and not told apart from {', '.join(rest)}"
        else:
            first = f"{best} is first, and not told apart from any other model"
        return (
            f"{first}; {decided} of {len(self.pairs)} pairs are told apart, all "
            "together at 95 % (Holm)."
        )


def rank(comparisons: Sequence[Comparison]) -> list[Ranking]:
    """Order the models of each task in which there are three and more."""
    tasks: dict[str, list[Comparison]] = {}
    for each in comparisons:
        tasks.setdefault(each.task, []).append(each)
    return [_ranking(task, pairs) for task, pairs in tasks.items() if len(pairs) > 1]


def _ranking(task: str, pairs: Sequence[Comparison]) -> Ranking:
    numbers: dict[str, float] = {}
    metric, upwards = "", False
    for pair in pairs:
        if isinstance(pair, TextComparison):
            unit, (a, b, _) = next(iter(pair.units.items()))
            metric, values = f"bits a {unit[:-1]}", (bits(a.mean), bits(b.mean))
        else:
            metric, values = pair.metric, pair.scores
            upwards = not pair.sides[0].lower_is_better
        for name, value in zip(_names(pair), values, strict=True):
            numbers.setdefault(name, value)
    ordered = sorted(numbers.items(), key=lambda each: each[1], reverse=upwards)
    apart = [frozenset(_names(pair)) for pair in pairs if pair.decided]
    names = [name for name, _ in ordered]
    return Ranking(task, metric, ordered, groups(names, apart), pairs)


def _names(pair: Comparison) -> tuple[str, str]:
    a, b = pair.sides
    return a.name, b.name
