"""How far estimates are from log p(x), and what they cost: one model's table.

    python -m lm_latent_eval.demo --out results/world
    python benchmarks/estimators.py --data results/world/test.jsonl --every 5

Every text has a reference: the sum over a wide beam of the adapted proposal, and the
mean over many of its draws from a seed of their own. Both are below log p(x), strictly
or on average; the larger one is taken. Texts on which the two differ by more than
``--converged`` nats are counted, and never dropped.

The error of a setting is its estimate less the reference, in nats a text, over all
texts and seeds. Costs are CPU seconds of one thread, encoding and search included;
compare them within a run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.text.corpora import read_texts

SETTINGS = (
    "is,adapted,100",
    "is,smoothing,100",
    "is,smoothing,1000",
    "is,peeking,100",
    "is,prior,100",
    "beam,adapted,50",
    "beam,smoothing,50",
    "beam,smoothing,100",
)
ELSEWHERE = 10_000
"""The first seed of references, which no setting draws from."""


@dataclass(frozen=True)
class Setting:
    """An estimator, a proposal and a number of samples (or a width)."""

    estimator: str
    proposal: str
    num_samples: int

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read ``estimator,proposal,number``."""
        estimator, proposal, number = text.split(",")
        return cls(estimator, proposal, int(number))

    def estimates(
        self, model: LatentModel, texts: Sequence[str], seed: int
    ) -> list[Estimate]:
        """Score texts."""
        return model.log_likelihood(texts, seed=seed, **vars(self))


@dataclass(frozen=True)
class Row:
    """What came out of a setting."""

    setting: str
    perplexities: list[float]
    """Of all texts, one a seed."""
    printed: float
    """Relative standard error of the perplexity as printed, 0 for a beam."""
    median: float
    """Of the errors' absolute values, nats a text."""
    beyond: int
    """Texts whose root mean square error over seeds is above one nat."""
    worst: float
    """The largest root mean square error of a text."""
    seconds: float
    """CPU seconds a seed."""

    def __str__(self) -> str:
        """Return a row of Markdown."""
        perplexities = ", ".join(f"{p:.3f}" for p in self.perplexities)
        printed = f"{self.printed:.2%}" if self.printed else "strict"
        return (
            f"| {self.setting} | {perplexities} | {printed} | {self.median:.3f} | "
            f"{self.beyond} | {self.worst:.1f} | {self.seconds:.1f} |"
        )


def references(
    model: LatentModel, texts: Sequence[str], width: int, draws: int
) -> tuple[list[float], list[float]]:
    """Return the reference of each text, and by how much two ways to it differ."""
    beam = Setting("beam", "adapted", width).estimates(model, texts, 0)
    drawn = Setting("is", "adapted", draws).estimates(model, texts, ELSEWHERE)
    pairs = [(b.log_evidence, d.log_evidence) for b, d in zip(beam, drawn, strict=True)]
    return [max(pair) for pair in pairs], [abs(b - d) for b, d in pairs]


def measure(
    model: LatentModel,
    texts: Sequence[str],
    reference: Sequence[float],
    text: str,
    seeds: int,
) -> Row:
    """Score texts by one setting, from several seeds if it draws."""
    setting = Setting.parse(text)
    squares = [0.0] * len(texts)
    errors, perplexities, printed, seconds = [], [], [], 0.0
    seeds = 1 if setting.estimator == "beam" else seeds
    for seed in range(seeds):
        start = time.process_time()
        found = setting.estimates(model, texts, seed)
        seconds += time.process_time() - start
        tokens = sum(e.num_tokens for e in found)
        total = math.fsum(e.log_evidence for e in found)
        perplexities.append(math.exp(-total / tokens))
        printed.append(math.hypot(*(e.draws_stderr for e in found)) / tokens)
        for n, estimate in enumerate(found):
            error = estimate.log_evidence - reference[n]
            errors.append(abs(error))
            squares[n] += error**2 / seeds
    rms = [math.sqrt(square) for square in squares]
    return Row(
        text,
        perplexities,
        statistics.fmean(printed),
        statistics.median(errors),
        sum(error > 1 for error in rms),
        max(rms),
        seconds / seeds,
    )


def main() -> None:
    """Print the table, and keep its rows."""
    parser = argparse.ArgumentParser(description="Errors and costs of estimators.")
    parser.add_argument("--pretrained", type=Path, default=CHECKPOINT)
    parser.add_argument("--data", type=Path, required=True, help="texts")
    parser.add_argument("--every", type=int, default=1, help="every N-th text")
    parser.add_argument("--limit", type=int, help="texts")
    parser.add_argument("--longest", type=int, help="words of a text")
    parser.add_argument("--join", type=int, default=1, help="texts joined into one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    parser.add_argument("--width", type=int, default=400, help="of references' beams")
    parser.add_argument("--draws", type=int, default=20_000, help="of references")
    parser.add_argument("--converged", type=float, default=0.01, help="nats")
    parser.add_argument("--output", type=Path, help="JSON of the rows")
    args = parser.parse_args()
    torch.set_num_threads(1)

    model = lm_latent_eval.load(args.pretrained)
    texts = list(read_texts(args.data))[:: args.every]
    if args.longest:
        texts = [text for text in texts if len(text.split()) <= args.longest]
    texts = texts[: args.limit]
    number = max(1, len(texts) // args.join)
    texts = [" ".join(texts[n::number]) for n in range(number)]
    reference, apart = references(model, texts, args.width, args.draws)
    open_texts = sum(difference > args.converged for difference in apart)
    print(
        f"checkpoint {model.checkpoint.digest}, {len(texts)} texts; references: beam "
        f"{args.width} and {args.draws:,} draws, more than {args.converged:g} nats "
        f"apart on {open_texts} (at most {max(apart):.2f}); torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}, one thread\n"
    )
    print(
        "| setting | perplexity by seed | printed error | median error, nats "
        "| texts > 1 nat off | worst | CPU s |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    for setting in args.settings:
        rows.append(measure(model, texts, reference, setting, args.seeds))
        print(rows[-1], flush=True)
    if args.output:
        content = {"digest": model.checkpoint.digest, "reference": reference}
        content |= {"apart": apart, "rows": [vars(row) for row in rows]}
        args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
