"""How often ``compare`` names a winner falsely, and how often rightly.

``python benchmarks/verdicts.py`` prints the table of docs/comparing.md: texts whose
differences are drawn around zero, or around the mean at which Student's t decides half
of the time where differences are normal; texts in clusters, several models, and how
often a difference is decided by as many texts as ``--power`` asks for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import torch
from scipy.special import stdtrit
from tqdm import tqdm

from lm_latent_eval.estimators.paired import (
    PairedAccuracy,
    PairedDifference,
)
from lm_latent_eval.estimators.power import needed, needed_questions
from lm_latent_eval.estimators.standard_errors import pooled_degrees

SIZES = (10, 30, 100, 1000)
RUNS = 2
BETWEEN_RUNS = 0.5
"""Standard deviation of a run's rate, beside 1 of a text's difference."""

Generator = np.random.Generator


def normal(generator: Generator, texts: int) -> np.ndarray:
    """Draw standard normal differences."""
    return generator.normal(size=texts)


def heavy(generator: Generator, texts: int) -> np.ndarray:
    """Draw from Student's t of 3 degrees of freedom."""
    return generator.standard_t(3, size=texts)


def skewed(generator: Generator, texts: int, sd: float = 1.0) -> np.ndarray:
    """Draw log-normal differences, less their mean; ``sd`` is of their logarithms."""
    return np.exp(sd * generator.normal(size=texts)) - math.exp(sd**2 / 2)


def exponential(generator: Generator, texts: int) -> np.ndarray:
    """Draw exponential differences, less their mean."""
    return generator.exponential(size=texts) - 1


def rare(generator: Generator, texts: int) -> np.ndarray:
    """Draw standard normal differences, of which one in fifty is 50 further off."""
    return generator.normal(size=texts) + 50 * ((generator.random(texts) < 0.02) - 0.02)


KINDS: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "normal": normal,
    "t, 3 degrees": heavy,
    "exponential": exponential,
    "log-normal": skewed,
    "log-normal, 1.5": partial(skewed, sd=1.5),
}
UNSEEN = {"2 % at +50": rare}
"""What no method sees: most samples hold none of the texts that make the mean."""


def of_texts(d: np.ndarray) -> PairedDifference:
    """Compare two models by the differences of texts of one length."""
    values = torch.from_numpy(d)
    zeros = torch.zeros_like(values)
    return PairedDifference.of(values, torch.ones_like(values), draws_stderr=zeros)


def of_runs(generator: Generator, texts: int) -> PairedDifference:
    """Compare two models that do not differ, by two training runs each."""
    sides = [BETWEEN_RUNS * generator.normal(size=(RUNS, 1)) for _ in range(2)]
    d = sides[0].mean(0) - sides[1].mean(0) + generator.normal(size=texts)
    parts = [(side.std(ddof=1) / math.sqrt(RUNS), RUNS - 1.0) for side in sides]
    values = torch.from_numpy(d)
    return PairedDifference.of(
        values,
        torch.ones_like(values),
        draws_stderr=torch.zeros_like(values),
        runs_stderr=math.hypot(*(error for error, _ in parts)),
        runs_degrees=pooled_degrees(parts),
    )


def of_lengths(generator: Generator, texts: int) -> PairedDifference:
    """Compare two models by texts of log-normal lengths, each with a rate of its own.

    Of articles of Wikipedia, of 100 to 1,000 words, the variance of the difference of
    two n-gram models grows as the 1.6th power of the length; here it is the second.
    """
    lengths = torch.from_numpy(np.exp(generator.normal(size=texts)))
    values = lengths * torch.from_numpy(generator.normal(size=texts))
    return PairedDifference.of(values, lengths, draws_stderr=torch.zeros_like(values))


def decided(
    trials: int, texts: int, draw: Callable[[Generator], PairedDifference]
) -> float:
    """Return the share of comparisons that name a winner."""
    found = (draw(np.random.default_rng([texts, trial])) for trial in range(trials))
    return sum(each.undecided is None for each in found) / trials


def row(texts: int, trials: int) -> list[float]:
    """Return shares of false verdicts, then of right ones over Student's t."""
    false = [
        decided(trials, texts, lambda g, draw=draw: of_texts(draw(g, texts)))
        for draw in (KINDS | UNSEEN).values()
    ]
    for of in (of_runs, of_lengths):
        false.append(decided(trials, texts, lambda g, of=of: of(g, texts)))
    return [*false, power(texts, trials)]


def power(texts: int, trials: int) -> float:
    """Return the share of right verdicts of normal differences over Student's t."""
    reach = float(stdtrit(texts - 1, 0.975))
    gain = reach / math.sqrt(texts)
    found = decided(trials, texts, lambda g: of_texts(normal(g, texts) + gain))

    def by_t(trial: int) -> bool:
        d = normal(np.random.default_rng([texts, trial]), texts) + gain
        return abs(d.mean()) > reach * d.std(ddof=1) / math.sqrt(texts)

    return found / (sum(map(by_t, range(trials))) / trials)


CLUSTER = 10
"""Texts of a cluster, on average."""
SHARED = 0.3
"""Share of the variance that texts of a cluster have in common."""
CLUSTERED = (100, 150, 300, 1000)
"""Texts, of which that many clusters are made."""


def sizes(generator: Generator, texts: int, equal: bool) -> np.ndarray:
    """Return how many texts each cluster has: ten, or any number with that mean."""
    number = texts // CLUSTER
    if equal:
        return np.full(number, CLUSTER)
    return generator.geometric(1 / CLUSTER, size=number)


def of_clusters(
    generator: Generator, texts: int, equal: bool, gain: float = 0.0, aware: bool = True
) -> PairedDifference:
    """Compare two models by texts of which ten are of one passage."""
    counts = sizes(generator, texts, equal)
    place = np.repeat(np.arange(len(counts)), counts)
    shared = math.sqrt(SHARED) * generator.normal(size=len(counts))
    own = math.sqrt(1 - SHARED) * generator.normal(size=len(place))
    values = torch.from_numpy(shared[place] + own + gain)
    return PairedDifference.of(
        values,
        torch.ones_like(values),
        draws_stderr=torch.zeros_like(values),
        clusters=place.tolist() if aware else None,
    )


def clusters_row(texts: int, trials: int) -> list[float]:
    """Return shares of false verdicts: clusters equal, unequal, and not known of."""
    kinds = ((True, True), (False, True), (True, False))
    return [
        decided(
            trials,
            texts,
            lambda g, e=equal, a=aware: of_clusters(g, texts, e, aware=a),
        )
        for equal, aware in kinds
    ]


MODELS = 5


def family(texts: int, trials: int) -> float:
    """Return how often one of ten pairs of five equal models is told apart."""
    false = 0
    pairs = [*combinations(range(MODELS), 2)]
    for trial in range(trials):
        scores = normal(np.random.default_rng([texts, trial]), MODELS * texts)
        models = scores.reshape(MODELS, texts)
        p_values = [of_texts(models[a] - models[b]).p_value for a, b in pairs]
        false += min(p_values) < 0.05 / len(pairs)
    return false / trials


def power_rows(trials: int) -> list[tuple[str, int, float]]:
    """Return how often so many texts decide a difference as were said to in 80 %."""
    rows = []
    for gain in (0.8, 0.3, 0.1):
        found = needed(gain, 1.0, 1000)
        assert found is not None
        n = found.number
        share = decided(trials, n, lambda g, n=n, d=gain: of_texts(normal(g, n) + d))
        rows.append((f"texts, {gain} standard deviations", n, share))
    for gain in (0.5, 0.2):
        spread = math.sqrt(SHARED + (1 - SHARED) / CLUSTER)
        found = needed(gain, spread, 100)
        assert found is not None
        n = found.times(CLUSTER).number
        share = decided(
            trials, n, lambda g, n=n, d=gain: of_clusters(g, n, True, gain=d)
        )
        rows.append((f"texts in clusters of ten, {gain}", n, share))
    for gain, apart in ((0.1, 0.3), (0.03, 0.15)):
        n = needed_questions(gain, apart, 1000).number
        shares = [(apart + gain) / 2, (apart - gain) / 2, 1 - apart]
        split = np.random.default_rng(n).multinomial(n, shares, size=trials)
        share = float(np.mean([PairedAccuracy.split(a, b) < 0.05 for a, b, _ in split]))
        rows.append((f"questions, {gain:.0%} of {apart:.0%} apart", n, share))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    named = ("texts", "clusters", "models", "power")
    parser.add_argument("--only", choices=named, action="append", help="a table")
    args = parser.parse_args()
    trials, parts = args.trials, args.only or named
    if "texts" in parts:
        more = ("two runs a side", "unequal lengths", "power over t's")
        heads = ["texts", *KINDS, *UNSEEN, *more]
        print("|", " | ".join(heads), "|")
        print("|---" * len(heads) + "|")
    for texts in tqdm(SIZES if "texts" in parts else ()):
        *false, power = row(texts, trials)
        cells = [f"{share:.1%}" for share in false]
        print(f"| {texts:,} |", " | ".join(cells), f"| {power:.2f} |", flush=True)
    for texts in CLUSTERED if "clusters" in parts else ():
        cells = [f"{share:.1%}" for share in clusters_row(texts, trials)]
        print(
            f"| {texts:,} in {texts // CLUSTER} |", " | ".join(cells), "|", flush=True
        )
    for texts in (10, 30, 300) if "models" in parts else ():
        share = family(texts, trials)
        print(f"| {MODELS} models, {texts} texts | {share:.1%} |", flush=True)
    for what, number, share in power_rows(trials) if "power" in parts else ():
        print(f"| {what} | {number:,} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
