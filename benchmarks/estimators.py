"""How far estimates are from log p(x), and what they cost: one model's table.

    python -m lm_latent_eval.demo --out results/world
    python benchmarks/estimators.py --data results/world/test.jsonl --every 5

Every text has a reference (``references.py``). Texts that have not converged are
counted, and never dropped. The error of a setting is its estimate less the reference,
in nats a text, over all texts and seeds. Intervals are 1.96 printed errors to either
side, by Student's t where few passes told them; the reference's own error is added.
Cost is what p was asked for, in latents scored a text, and CPU seconds of one thread
with searches and encoding; compare them within a run.
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
from typing import Any

import torch
from references import Reference, of_texts, texts_of

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.estimators.standard_errors import widened
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Text

ESTIMATORS = ("auto", "mixed", "is", "smc", "beam")
REACH = 1.96
ROUNDING = 1e-4
"""Nats by which float32 scores of a text differ in other batches."""


@dataclass(frozen=True)
class Row:
    """What came out of a setting."""

    setting: str
    perplexities: list[float]
    """Of all texts, one a seed."""
    median: float
    """Of the errors' absolute values, nats a text."""
    beyond: int
    """Texts whose root mean square error over seeds is above one nat."""
    worst: float
    """The largest root mean square error of a text."""
    held: int
    """Texts, of all seeds, whose interval has the reference."""
    printed: int
    """Texts, of all seeds, with an interval."""
    asked: int
    """Texts, of all seeds."""
    evaluations: float
    """Latents scored by p a text, a seed."""
    seconds: float
    """CPU seconds a seed."""

    def __str__(self) -> str:
        """Return a row of Markdown."""
        perplexities = ", ".join(f"{p:.5g}" for p in self.perplexities)
        held = f"{self.held / self.printed:.0%}" if self.printed else ""
        return (
            f"| {self.setting} | {perplexities} | {self.median:.3f} | {self.beyond} | "
            f"{self.worst:.1f} | {held} | {1 - self.printed / self.asked:.0%} | "
            f"{self.evaluations:,.0f} | {self.seconds:.1f} |"
        )


class Meter:
    """Counts what p is asked for."""

    def __init__(self, model: Any) -> None:
        """Listen to a model."""
        self.scored, self.log_joint = 0, model.log_joint
        model.log_joint = self

    def __call__(self, encoded: Any, latents: Any) -> torch.Tensor:
        """Score latents, and count their words."""
        log_p: torch.Tensor = self.log_joint(encoded, latents)
        self.scored += log_p.shape[1] * int(encoded.batch.length.sum())
        return log_p


def estimates(
    checkpoint: Checkpoint, texts: Sequence[Text], setting: str, seed: int
) -> list[Estimate]:
    """Estimate texts by ``estimator,proposal,samples``."""
    names = ("estimator", "proposal", "num_samples")
    options = dict(zip(names, setting.split(","), strict=True))
    parsed = ScoringOptions.parse(seed=seed, **options)
    scorer = Scorer(checkpoint, parsed, quiet=True)
    missed = Missed([text.query for text in texts])
    parts = scorer.whole_texts.estimate([*texts], missed)
    found = {text.name: answer.estimate for text, answer in parts}
    missed.tell()
    return [found[text.name] for text in texts]


def holds(estimate: Estimate, truth: Reference) -> bool:
    """Whether the interval at 95 % has the reference, whose own error is added."""
    drawn = widened(estimate.draws_stderr, estimate.draws_degrees)
    error = math.hypot(drawn, estimate.missed or 0.0, truth.stderr, ROUNDING)
    return abs(estimate.log_evidence - truth.log_p) <= REACH * error


def measure(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    truth: Sequence[Reference],
    setting: str,
    seeds: int,
    meter: Meter,
) -> Row:
    """Score texts by one setting, from several seeds if it draws."""
    seeds = 1 if setting.startswith("beam") else seeds
    squares = [0.0] * len(texts)
    errors, perplexities, held, printed = [], [], 0, 0
    meter.scored, start = 0, time.process_time()
    runs = [estimates(checkpoint, texts, setting, seed) for seed in range(seeds)]
    seconds = time.process_time() - start
    tokens = sum(len(text.words) for text in texts)
    for found in runs:
        total = math.fsum(e.log_evidence for e in found)
        perplexities.append(math.exp(-total / tokens))
        for n, (estimate, reference) in enumerate(zip(found, truth, strict=True)):
            error = estimate.log_evidence - reference.log_p
            errors.append(abs(error))
            squares[n] += error**2 / seeds
            if estimate.stderr is not None:
                printed += 1
                held += holds(estimate, reference)
    rms = [math.sqrt(square) for square in squares]
    return Row(
        setting,
        perplexities,
        statistics.median(errors),
        sum(error > 1 for error in rms),
        max(rms),
        held,
        printed,
        seeds * len(texts),
        meter.scored / tokens / seeds,
        seconds / seeds,
    )


def every_setting(checkpoint: Checkpoint, number: int) -> list[str]:
    """List every estimator with every proposal that it can take."""
    proposals = checkpoint.model.proposal_names
    return [
        f"{estimator},{proposal},{number}"
        for estimator in ESTIMATORS
        for proposal in proposals
        if not (estimator == "smc" and proposal == "crf")
    ]


def draw(rows: Sequence[Row], num_texts: int, path: Path) -> None:
    """Draw errors against cost: a line an estimator and proposal, a number a K."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    from lm_latent_eval.report.figures import COLOURS, MARKS, RESOLUTION

    figure, axes = plt.subplots(figsize=(7, 4))
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.setting.rpartition(",")[0], []).append(row)
    for (name, found), colour, mark in zip(lines.items(), COLOURS, MARKS, strict=False):
        cost = [row.seconds / num_texts for row in found]
        error = [row.worst for row in found]
        label = name.replace(",", ", ")
        axes.plot(cost, error, color=colour, marker=mark, markersize=5, label=label)
        for row, *place in zip(found, cost, error, strict=True):
            samples = row.setting.rpartition(",")[2]
            axes.annotate(
                samples,
                place,
                (0, 5),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=7,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("CPU seconds a text")
    axes.set_ylabel("largest error of a text, nats")
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        title="numbers are K",
        fontsize=8,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    figure.savefig(path, bbox_inches="tight", dpi=RESOLUTION)


def main() -> None:
    """Print the table, keep its rows and draw them."""
    parser = argparse.ArgumentParser(description="Errors and costs of estimators.")
    parser.add_argument("--pretrained", type=Path, default=CHECKPOINT)
    parser.add_argument("--data", type=Path, required=True, help="texts")
    parser.add_argument("--every", type=int, default=1, help="score one text of these")
    parser.add_argument("--most", type=int, default=40, help="texts")
    parser.add_argument("--words", type=int, default=64, help="of a text, at most")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--settings", nargs="+", help="estimator,proposal,samples")
    parser.add_argument("--width", type=int, default=200, help="of references' beams")
    parser.add_argument("--draws", type=int, default=20_000, help="of references")
    parser.add_argument("--converged", type=float, default=0.01, help="nats")
    parser.add_argument("--references", type=Path, help="where they are kept")
    parser.add_argument("--output", type=Path, help="JSON of the rows")
    parser.add_argument("--figure", type=Path, help="PNG of errors against cost")
    args = parser.parse_args()
    torch.set_num_threads(1)

    checkpoint = lm_latent_eval.load(args.pretrained).checkpoint
    texts = texts_of(
        checkpoint, args.data, every=args.every, most=args.most, words=args.words
    )
    truth = of_texts(
        checkpoint,
        texts,
        width=args.width,
        most=args.draws,
        within=args.converged,
        kept=args.references,
    )
    tokens = sum(len(text.words) for text in texts)
    perplexity = math.exp(-math.fsum(t.log_p for t in truth) / tokens)
    loose = [t for t in truth if not t.has_converged(args.converged)]
    apart = max((t.apart for t in loose), default=0.0)
    print(
        f"checkpoint {checkpoint.digest}, {len(texts)} texts, {tokens:,} tokens; "
        f"reference perplexity {perplexity:.5g}, from beams of {args.width} and at "
        f"most {args.draws:,} draws; {len(loose)} texts have not converged to "
        f"{args.converged:g} nats (at most {apart:.2f} apart); torch "
        f"{torch.__version__}, Python {sys.version.split()[0]}, one thread\n"
    )
    print(
        "| setting | perplexity by seed | median error, nats | texts > 1 nat off "
        "| worst | intervals that hold | no error printed | evaluations of p a text "
        "| CPU s |\n|---|---|---|---|---|---|---|---|---|"
    )
    meter, rows = Meter(checkpoint.model), []
    with torch.no_grad():
        for setting in args.settings or every_setting(checkpoint, 100):
            row = measure(checkpoint, texts, truth, setting, args.seeds, meter)
            rows.append(row)
            print(row, flush=True)
    if args.output:
        content = {
            "digest": checkpoint.digest,
            "references": [vars(t) for t in truth],
            "rows": [vars(row) for row in rows],
        }
        args.output.write_text(json.dumps(content, indent=1) + "\n")
    if args.figure:
        draw(rows, len(texts), args.figure)


if __name__ == "__main__":
    main()
