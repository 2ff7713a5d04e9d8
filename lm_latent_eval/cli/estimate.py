"""``lm-latent-eval estimate``: score a file of texts without a harness."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands

OPTIONS = {
    "estimator": "auto, mixed, is, beam, smc, ais, l2r, chib or exact (default: the "
    "model's own)",
    "num_samples": "samples a text, or width of the beam (default: 100)",
    "proposal": "what latents are drawn from (default: what reads most)",
    "temperature": "divides the proposal's scores (default: 1)",
    "seed": "of the random numbers (default: 0)",
    "unk": "unknown words: spelled, penalized or closed",
    "target_stderr": "choose the samples of each text for this error, in nats",
    "max_samples": "the most that --target-stderr may choose",
    "bounds": "lower, or both for an upper bound as well (default: lower)",
}


def add_to(commands: Commands) -> None:
    """Add the command."""
    estimate = commands.add_parser(
        "estimate", help="score a file of texts, with Monte Carlo errors"
    )
    estimate.add_argument("checkpoint", help="directory or hub repository")
    estimate.add_argument(
        "--data",
        type=Path,
        required=True,
        help="texts: JSON lines with tokens or text, or one text a line",
    )
    estimate.add_argument(
        "--output",
        type=Path,
        help="JSON lines, an estimate a text; an interrupted run goes on from there",
    )
    for name, what in OPTIONS.items():
        estimate.add_argument(f"--{name.replace('_', '-')}", help=what)
    estimate.add_argument("--batch-size", help="texts scored together")
    estimate.add_argument("--device", help="cpu or cuda")
    estimate.add_argument("--dtype", help="float32 or float64")
    estimate.set_defaults(run=_estimate)


def _estimate(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.estimates import table
    from lm_latent_eval.scoring.files import score_file
    from lm_latent_eval.scoring.interface import open_model, scorer_of
    from lm_latent_eval.scoring.options import parse_device, parse_dtype
    from lm_latent_eval.text.corpora import read_texts

    given = {n: v for n in OPTIONS if (v := getattr(args, n)) is not None}
    texts = read_texts(args.data)
    opened = open_model(
        args.checkpoint,
        options=given,
        dtype=parse_dtype(args.dtype),
        device=parse_device(args.device),
    )
    scorer = scorer_of(opened, given, batch_size=args.batch_size)
    items = score_file(scorer, texts, args.output)
    print(table(items, scorer.fingerprint))
