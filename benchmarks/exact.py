"""Estimators beside a p(x) that is known: what their errors promise, and keep.

    python benchmarks/exact.py --model results/world-lrlm --data results/world/dev.jsonl

The model has to offer ``estimator=exact`` (docs/lrlm.md trains one). Numbers are nats a
text, means over the texts. An interval is 1.96 standard errors to either side; texts of
which no error is printed are counted. Beside it stands the same share for the errors
that draws tell of themselves. Certificates hold with a confidence of 95 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import lm_latent_eval
from lm_latent_eval.estimators import (
    Bound,
    CorpusRate,
    Estimate,
    certified_log_likelihood,
)
from lm_latent_eval.text.corpora import read_texts

SETTINGS = (
    "beam,posterior,10",
    "beam,adapted,10",
    "beam,adapted,100",
    "is,posterior,10",
    "is,adapted,100",
    "is,adapted,1000",
    "smc,adapted,1000",
    "mixed,posterior,10",
    "mixed,adapted,4",
    "mixed,adapted,10",
    "mixed,adapted,100",
    "auto,adapted,10",
    "auto,adapted,20",
    "auto,adapted,100",
    "auto,adapted,1000",
)
REACH = 1.96
ROUNDING = 1e-4
"""Nats by which float32 scores of a text differ in other batches."""
HEAD = (
    "`estimator`, `proposal`, K",
    "log p̂",
    "off, by seed",
    "±, by seed",
    "no error",
    "hold",
    "of `draws_stderr`, hold",
    "`unseen`, median; most",
    "certified, least",
)


def row(setting: str, runs: Sequence[list[Estimate]], truth: list[Estimate]) -> str:
    """Return a setting's line of the table; every run has a seed of its own."""
    exact = _mean(truth)
    pairs = [pair for found in runs for pair in zip(found, truth, strict=True)]
    printed = [(e, t, e.stderr) for e, t in pairs if e.stderr is not None]
    drawn = [(e, t, e.draws_stderr) for e, t in pairs if e.effective_sample_size]
    unseen = [e.unseen for e, _ in pairs if e.unseen is not None]
    certified = [_certified(found) for found in runs]
    if any(c > exact + ROUNDING for c in certified):
        print(f"{setting}: a certificate is above {exact}", file=sys.stderr)
    cells = [
        setting,
        f"{statistics.fmean(_mean(found) for found in runs):.3f}",
        "; ".join(_distinct(f"{_mean(found) - exact:.3f}" for found in runs)),
        "; ".join(_distinct(_error(found) for found in runs)),
        f"{1 - len(printed) / len(pairs):.0%}",
        _held(printed),
        _held(drawn),
        f"{statistics.median(unseen):.1g}; {max(unseen):.1g}" if unseen else "",
        f"{min(certified):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(estimates: Sequence[Estimate]) -> float:
    return statistics.fmean(e.log_evidence for e in estimates)


def _error(estimates: Sequence[Estimate]) -> str:
    """Return the error that is printed of all texts together."""
    texts = torch.ones(len(estimates), dtype=torch.long)
    error = CorpusRate.nats(estimates, texts).monte_carlo_stderr
    return "N/A" if error is None else f"{error:.3f}"


def _certified(estimates: Sequence[Estimate]) -> float:
    """Return what log p is at least, a text, with 95 % confidence if it is drawn."""
    log_p = torch.tensor([e.log_evidence for e in estimates], dtype=torch.float64)
    if Bound.weakest(e.bound for e in estimates) is Bound.STOCHASTIC_LOWER:
        return certified_log_likelihood(log_p) / len(estimates)
    return log_p.mean().item()


def _held(judged: Sequence[tuple[Estimate, Estimate, float]]) -> str:
    """Return how many intervals have the exact number in them."""
    held = [
        abs(e.log_evidence - t.log_evidence) <= REACH * math.hypot(error, ROUNDING)
        for e, t, error in judged
    ]
    return f"{statistics.fmean(held):.0%}" if held else ""


def _distinct(values: Iterable[str]) -> list[str]:
    """Return values in order, or the one that all of them are."""
    values = list(values)
    return values[:1] if len(set(values)) == 1 else values


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--most", type=int, default=20, help="texts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = lm_latent_eval.load(arguments.model)
    texts = read_texts(arguments.data)[: arguments.most]
    truth = model.log_likelihood(texts, estimator="exact")
    tokens = sum(e.num_tokens for e in truth)
    print(f"{len(texts)} texts, {tokens:,} tokens, log p = {_mean(truth):.3f}\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for setting in arguments.settings:
        estimator, proposal, number = setting.split(",")
        try:
            runs = [
                model.log_likelihood(
                    texts,
                    estimator=estimator,
                    proposal=proposal,
                    num_samples=int(number),
                    seed=seed,
                )
                for seed in range(arguments.seeds)
            ]
        except ValueError as err:  # no draw of a text is possible
            print(f"| {setting} | refused: {err} |{' |' * (len(HEAD) - 2)}")
        else:
            print(row(setting, runs, truth), flush=True)


if __name__ == "__main__":
    main()
