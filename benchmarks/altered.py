"""Texts that fit the demonstration's model badly: what each estimator finds, and costs.

``python benchmarks/altered.py`` alters demonstration texts (words shuffled, names
replaced, lower case, five texts joined) and prints, kind by kind, nats a text below a
wide search with other random numbers, how many of the printed intervals (95 %,
Student's t) do not hold what that found, texts without an error, the median error and
half-width of those that are off by more than 1e-4 nats, and CPU seconds.
``--figure FILE`` draws mean distances against seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from scipy.stats import t as student

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo.__main__ import main as write_demo

ESTIMATORS = (
    ("auto", 20),
    ("auto", 100),
    ("mixed", 100),
    ("mixed", 400),
    ("beam", 1600),
)
REFERENCE = ("dpf", 6400)
LITTLE = 1e-4
"""Nats that nobody asks an error of."""

MARKS = {"auto": "o", "mixed": "s", "beam": "^"}
COLORS = {"auto": "#0072b2", "mixed": "#d55e00", "beam": "#009e73"}

Alter = Callable[[str, random.Random], str]
Point = tuple[tuple[str, int], float, list[float]]
"""A method, its CPU seconds, and how far it is below the best, nats a text."""


def demonstration() -> list[str]:
    """Return the demonstration's texts."""
    with tempfile.TemporaryDirectory() as folder:
        write_demo(["--out", folder])
        lines = (Path(folder) / "test.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def alterations(texts: list[str]) -> dict[str, Alter]:
    """Return what is done to a text, by name."""
    words = {word.strip(".,") for text in texts for word in text.split()[1:]}
    names = sorted(word for word in words if word[:1].isupper())

    def shuffled(text: str, dice: random.Random) -> str:
        return " ".join(dice.sample(text.split(), len(text.split())))

    def renamed(text: str, dice: random.Random) -> str:
        return " ".join(
            dice.choice(names) if word[:1].isupper() and dice.random() < 0.7 else word
            for word in text.split()
        )

    def joined(text: str, dice: random.Random) -> str:
        return " ".join([text, *dice.sample(texts, 4)])

    return {
        "as they are": lambda text, dice: text,
        "shuffled": shuffled,
        "names replaced": renamed,
        "lower case": lambda text, dice: text.lower(),
        "five joined": joined,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, texts = lm_latent_eval.load(CHECKPOINT, device="cpu"), demonstration()
    model.log_likelihood(texts[:1], estimator="is", num_samples=1)
    print("| texts | estimator | below | not held | N/A | error | half-width | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    points: dict[str, list[Point]] = {}
    for kind, alter in alterations(texts).items():
        dice = random.Random(asked.seed)
        some = [alter(text, dice) for text in dice.sample(texts, asked.texts)]

        def scored(method: tuple[str, int], seed: int):
            name, number = method
            begin = time.process_time()
            found = model.log_likelihood(
                some,  # noqa: B023
                estimator=name,
                num_samples=number,
                seed=seed,
            )
            return found, time.process_time() - begin

        best, _ = scored(REFERENCE, asked.seed + 1)
        for method in ESTIMATORS:
            found, seconds = scored(method, asked.seed)
            print(_row(kind, method, found, best, seconds), flush=True)
            points.setdefault(kind, []).append((method, seconds, _below(found, best)))
    if asked.figure:
        draw(points, asked.figure)


def draw(points: dict[str, list[Point]], file: Path) -> None:
    """Draw mean distances from the best that is known against cost, kind by kind."""
    figure, axes = plt.subplots(
        1, len(points), figsize=(3 * len(points), 3.2), sharey=True
    )
    for ax, (kind, some) in zip(axes, points.items(), strict=True):
        for (name, number), seconds, below in some:
            ax.plot(
                seconds,
                max(statistics.fmean(below), LITTLE),
                MARKS[name],
                color=COLORS[name],
            )
            ax.annotate(
                f"{name} {number}",
                (seconds, max(statistics.fmean(below), LITTLE)),
                textcoords="offset points",
                xytext=(4, 4),
                fontsize=7,
            )
        ax.set(xscale="log", yscale="log", title=kind, xlabel="CPU seconds")
        ax.margins(0.4)
    axes[0].set_ylabel("nats a text below the best known")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def _below(found, best) -> list[float]:
    """Return how far estimates are below better ones, nats a text."""
    return [b.log_evidence - f.log_evidence for b, f in zip(best, found, strict=True)]


def _row(kind: str, method: tuple[str, int], found, best, seconds: float) -> str:
    """Compare estimates with better ones, text by text."""
    below = _below(found, best)
    rows = [
        (abs(off), _half_width(f), 2 * b.draws_stderr)
        for off, f, b in zip(below, found, best, strict=True)
        if f.stderr is not None
    ]
    false = sum(off > math.hypot(half, theirs) + LITTLE for off, half, theirs in rows)
    far = [(off, half) for off, half, _ in rows if off > LITTLE]
    middle = [f"{statistics.median(x):.4f}" for x in zip(*far, strict=True)]
    cells = [
        kind,
        f"{method[0]}, {method[1]}",
        f"{statistics.fmean(below):.3f}",
        *(
            [f"{false} of {len(rows)}", f"{len(found) - len(rows)}"]
            if rows
            else ["", ""]
        ),
        *(middle or ["", ""]),
        f"{seconds:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _half_width(estimate: lm_latent_eval.Estimate) -> float:
    """Return that of the interval that holds 95 %, nats."""
    drawn = student.ppf(0.975, estimate.draws_degrees) * estimate.draws_stderr
    return math.hypot(drawn, NORMAL * (estimate.missed or 0.0))


NORMAL = 1.96

if __name__ == "__main__":
    main()
