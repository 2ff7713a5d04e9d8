"""``lm-latent-eval tune``: fit a checkpoint's proposal to texts that are not scored."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import Commands, add_fields, add_options, fields
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_device,
)
from lm_latent_eval.training.options import FitBudget

if TYPE_CHECKING:
    from lm_latent_eval.training.fitting import Worth


def add_to(commands: Commands) -> None:
    """Add the command."""
    tune = commands.add_parser(
        "tune",
        help="fit a checkpoint's proposal to texts; p stays what it is",
        example="lm-latent-eval tune DIR --data texts.jsonl",
    )
    tune.add_argument("checkpoint", type=Path, help="the directory")
    tune.add_argument(
        "--data",
        type=Path,
        help="texts that you will not score: JSON lines with tokens or text, or one "
        "text a line; needed without --sleep",
    )
    add_options(tune, ScoringOptions, ("proposal",))
    add_options(tune, OpeningOptions, ("device",))
    add_fields(tune, "budget", FitBudget)
    tune.set_defaults(run=_tune)


def _tune(args: argparse.Namespace) -> None:
    from lm_latent_eval.scoring.tuning import tune
    from lm_latent_eval.text.corpora import read_texts

    budget = fields(FitBudget, args)
    if args.data is None and not budget.sleep:
        raise ValueError(
            "tune needs texts: --data FILE, or --sleep N of the model's own"
        )
    try:
        checkpoint, name, found = tune(
            args.checkpoint,
            read_texts(args.data) if args.data else [],
            proposal=args.proposal,
            budget=budget,
            device=parse_device(args.device),
        )
    except KeyboardInterrupt as stop:
        stop.add_note(f"{args.checkpoint} is as it was")
        raise
    print(f"{name}, by {found.num_texts} texts of {found.num_tokens} tokens:")
    for number, each in enumerate(found.curve):
        strengths = ", ".join(f"{n} {v:.3f}" for n, v in each.strengths.items())
        print(f"  round {number}: {_said(each.worth, found.num_tokens)}; {strengths}")
    print(
        f"on other draws, before: {_said(found.before, found.num_tokens)}\n"
        f"                 after: {_said(found.after, found.num_tokens)}\n"
        f"nearer to p(z|x) by {found.gain:.4f} ± {found.stderr:.4f} nats a text"
    )
    if found.better:
        print(
            f"wrote the last round into {args.checkpoint}, checkpoint "
            f"{checkpoint.digest}: do not score these texts with it"
        )
    else:
        print(f"that is no gain to speak of: {args.checkpoint} is as it was")


def _said(worth: Worth, num_tokens: int) -> str:
    missed = f", {worth.missed} texts missed" if worth.missed else ""
    return (
        f"{-worth.log_evidence / num_tokens:.4f} nats a token, "
        f"{worth.effective_samples:.1f} effective samples{missed}"
    )
