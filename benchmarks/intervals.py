"""Intervals of each estimator against a wide search, on texts that fit a model or not.

    python benchmarks/intervals.py --texts 200 --output results/intervals

alters demonstration texts (words shuffled, names replaced, lower case, several texts
joined) and scores each by every estimator and by a search of ten times the width with
other random numbers. ``--model DIR --data FILE`` takes another model and texts as they
are. The table says, kind by kind, nats a text below that search, how many of the
intervals (95 %) do not hold what it found and the upper limit of their share (Clopper
and Pearson), texts without an error, the median error and half-width of those that
are off by more than 1e-4 nats, and CPU seconds. Scores are kept one by one in the
output folder: a run that was stopped goes on, and more texts add to it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from scipy.stats import beta
from scipy.stats import t as student

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo.__main__ import main as write_demo
from lm_latent_eval.ledger.database import Ledger
from lm_latent_eval.text.corpora import read_texts

METHODS = (
    ("auto", 20),
    ("auto", 100),
    ("mixed", 100),
    ("mixed", 400),
    ("beam", 400),
    ("beam", 1600),
    ("is", 1000),
    ("smc", 1000),
)
REFERENCE = ("dpf", 6400)
LITTLE = 1e-4
"""Nats that nobody asks an error of."""
NORMAL = 1.96
MARKS = {"auto": "o", "mixed": "s", "beam": "^", "is": "x", "smc": "+"}
COLORS = {
    "auto": "#0072b2",
    "mixed": "#d55e00",
    "beam": "#009e73",
    "is": "#cc79a7",
    "smc": "#666666",
}

Alter = Callable[[str, random.Random], str]
Method = tuple[str, int]
Scores = dict[Method, dict[int, dict[str, Any]]]
"""Method -> text -> its score."""


def demonstration() -> list[str]:
    """Return the demonstration's texts."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(sys.stderr):
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

    def joined(number: int) -> Alter:
        return lambda text, dice: " ".join([text, *dice.choices(texts, k=number - 1)])

    return {
        "as they are": lambda text, dice: text,
        "shuffled": shuffled,
        "names replaced": renamed,
        "lower case": lambda text, dice: text.lower(),
        "five joined": joined(5),
        "twelve joined": joined(12),
    }


def altered(kinds: Sequence[str], number: int, seed: int) -> dict[str, list[str]]:
    """Return that many texts of each kind; the first are the same for any number."""
    texts = demonstration()
    known = alterations(texts)
    if unknown := set(kinds) - known.keys():
        raise SystemExit(f"--kinds {', '.join(unknown)}: expected {', '.join(known)}")
    found = {}
    for kind in kinds or known:
        dice = [random.Random(f"{seed} {kind} {n}") for n in range(number)]
        found[kind] = [known[kind](each.choice(texts), each) for each in dice]
    return found


def main() -> None:
    """Score what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=[])
    parser.add_argument("--methods", nargs="+", help="such as auto,100")
    parser.add_argument("--model", default=CHECKPOINT)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    methods = [_method(m) for m in asked.methods] if asked.methods else [*METHODS]
    if asked.data:
        texts = {asked.data.name: read_texts(asked.data)[: asked.texts]}
    else:
        texts = altered(asked.kinds, asked.texts, asked.seed)
    torch.set_num_threads(1)
    model = lm_latent_eval.load(asked.model, device="cpu")
    settings = {
        "model": model.checkpoint.digest,
        "data": str(asked.data),
        "seed": asked.seed,
        "lm_latent_eval": lm_latent_eval.__version__,
    }
    asked.output.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(asked.output / "scores.sqlite", "file of scores", 1)
    start = 100_000 * asked.seed  # each text has random numbers of its own
    points = {}
    print(
        "| texts | estimator | below | not held | at most | N/A | error | half-width "
        "| CPU s |\n|---|---|---|---|---|---|---|---|---|"
    )
    with ledger.going_on(settings, "the scores so far") as rows:
        for kind, some in texts.items():
            for number, text in enumerate(some):
                for method in (REFERENCE, *methods):
                    key = (*method, number)
                    if key not in rows.keys(kind):
                        rows.add(
                            kind, key, _scored(model, text, method, start + number)
                        )
            found: Scores = {
                method: {n: rows.get(kind, (*method, n)).row for n in range(len(some))}
                for method in (REFERENCE, *methods)
            }
            best = found.pop(REFERENCE)
            for method, scores in found.items():
                print(_line(kind, method, scores, best), flush=True)
            points[kind] = [(m, *_point(s, best)) for m, s in found.items()]
    if asked.figure:
        draw(points, asked.figure)


def _method(text: str) -> Method:
    name, _, number = text.partition(",")
    return name, int(number)


def _scored(
    model: lm_latent_eval.LatentModel, text: str, method: Method, seed: int
) -> dict[str, Any]:
    """Score a text; the search that others are compared with has odd seeds."""
    name, number = method
    begin = time.process_time()
    [found] = model.log_likelihood(
        [text],
        estimator=name,
        num_samples=number,
        seed=2 * seed + (method == REFERENCE),
    )
    return {
        "log_p": found.log_evidence,
        "half": None if found.stderr is None else _half_width(found),
        "draws_stderr": found.draws_stderr,
        "seconds": time.process_time() - begin,
    }


def _half_width(estimate: lm_latent_eval.Estimate) -> float:
    """Return that of the interval that holds 95 %, nats."""
    drawn = student.ppf(0.975, estimate.draws_degrees) * estimate.draws_stderr
    return math.hypot(drawn, NORMAL * (estimate.missed or 0.0))


def _below(scores: dict[int, Any], best: dict[int, Any]) -> Iterator[float]:
    """Yield how far scores are below better ones, nats a text."""
    for number, score in scores.items():
        yield best[number]["log_p"] - score["log_p"]


def _point(scores: dict[int, Any], best: dict[int, Any]) -> tuple[float, float]:
    """Return CPU seconds a text and the mean distance, nats."""
    seconds = statistics.fmean(score["seconds"] for score in scores.values())
    return seconds, max(statistics.fmean(map(abs, _below(scores, best))), LITTLE)


def _line(
    kind: str, method: Method, scores: dict[int, Any], best: dict[int, Any]
) -> str:
    """Compare scores with better ones, text by text."""
    below = dict(zip(scores, _below(scores, best), strict=True))
    told = {n: abs(off) for n, off in below.items() if scores[n]["half"] is not None}
    false = sum(
        off > math.hypot(scores[n]["half"], 2 * best[n]["draws_stderr"]) + LITTLE
        for n, off in told.items()
    )
    far = [(off, scores[n]["half"]) for n, off in told.items() if off > LITTLE]
    middle = [f"{statistics.median(x):.4f}" for x in zip(*far, strict=True)]
    most = beta.ppf(0.95, false + 1, len(told) - false) if false < len(told) else 1.0
    held = [f"{false} of {len(told)}", f"{100 * most:.0f} %"] if told else ["", ""]
    missing = f"{len(scores) - len(told)}" if told else ""
    cells = [
        kind,
        f"{method[0]}, {method[1]}",
        f"{statistics.fmean(below.values()):.3f}",
        *held,
        missing,
        *(middle or ["", ""]),
        f"{sum(score['seconds'] for score in scores.values()):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def draw(points: dict[str, list[tuple[Method, float, float]]], file: Path) -> None:
    """Draw mean distances from the best that is known against cost, kind by kind."""
    figure, axes = plt.subplots(
        1, len(points), figsize=(3 * len(points), 3.2), sharey=True, squeeze=False
    )
    for ax, (kind, some) in zip(axes[0], points.items(), strict=True):
        for (name, number), seconds, off in some:
            ax.plot(seconds, off, MARKS[name], color=COLORS[name])
            ax.annotate(
                f"{name} {number}",
                (seconds, off),
                textcoords="offset points",
                xytext=(4, 4),
                fontsize=7,
            )
        ax.set(xscale="log", yscale="log", title=kind, xlabel="CPU seconds a text")
        ax.margins(0.4)
    axes[0, 0].set_ylabel("nats off the best known")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
