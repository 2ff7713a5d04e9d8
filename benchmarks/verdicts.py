"""How often ``compare`` names a winner falsely, and how often rightly.

``python benchmarks/verdicts.py`` prints the table of docs/comparing.md: texts whose
differences are drawn around zero, or around the mean at which Student's t decides half
of the time where differences are normal.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import stdtrit
from tqdm import tqdm

from lm_latent_eval.estimators.degrees import pooled_degrees
from lm_latent_eval.estimators.paired import PairedDifference

SIZES = (2, 3, 5, 10, 12, 15, 20, 30, 100, 300, 1000)
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


def skewed(generator: Generator, texts: int) -> np.ndarray:
    """Draw log-normal differences, less their mean."""
    return np.exp(generator.normal(size=texts)) - math.exp(0.5)


KINDS: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "normal": normal,
    "t, 3 degrees": heavy,
    "log-normal": skewed,
}


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
        for draw in KINDS.values()
    ]
    false.append(decided(trials, texts, lambda g: of_runs(g, texts)))
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    trials = parser.parse_args().trials
    print("| texts |", " | ".join(KINDS), "| two runs a side | power over t's |")
    print("|---" * (len(KINDS) + 3) + "|")
    for texts in tqdm(SIZES):
        *false, power = row(texts, trials)
        cells = [f"{share:.1%}" for share in false]
        print(f"| {texts:,} |", " | ".join(cells), f"| {power:.2f} |", flush=True)


if __name__ == "__main__":
    main()
