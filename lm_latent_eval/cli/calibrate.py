"""``lm-latent-eval calibrate``: how far an estimator is from log p(x)."""

from __future__ import annotations

import argparse

from lm_latent_eval.cli.arguments import Commands
from lm_latent_eval.cli.estimate import add_scoring, scoring
from lm_latent_eval.scoring.options import parse_device, parse_dtype


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    calibrate = commands.add_parser(
        "calibrate",
        help=said,
        example="lm-latent-eval calibrate DIR --texts 100 --num-samples 100",
    )
    calibrate.add_argument("checkpoint", help="directory or hub repository")
    calibrate.add_argument(
        "--texts", type=int, default=100, help="to draw (default: 100)"
    )
    calibrate.add_argument(
        "--max-words",
        type=int,
        default=64,
        help="of a text, its end included; longer ones are left out (default: 64)",
    )
    add_scoring(calibrate, "revision")
    calibrate.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> None:
    from lm_latent_eval.arguments import whole
    from lm_latent_eval.report.calibration import written
    from lm_latent_eval.scoring.calibration import calibrate
    from lm_latent_eval.scoring.interface import open_model, scorer_of
    from lm_latent_eval.scoring.scorer import Scorer

    number = whole("texts", args.texts, 2)
    most = whole("max_words", args.max_words, 1)
    options = scoring(args)
    opened = open_model(
        args.checkpoint,
        model=args.model,
        revision=args.revision,
        options=options,
        dtype=parse_dtype(args.dtype),
        device=parse_device(args.device),
    )
    scorer = scorer_of(
        opened,
        options,
        batch_size=args.batch_size,
        max_batch_size=args.max_batch_size,
    )
    if not isinstance(scorer, Scorer):
        raise ValueError(
            f"{args.checkpoint}: its model scores strings its own way, without latents "
            "that could be drawn with its texts"
        )
    print(written(calibrate(scorer, number, most=most), scorer.fingerprint, number))
