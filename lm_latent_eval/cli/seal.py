"""``lm-latent-eval seal``: accept a checkpoint that was changed by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    seal = commands.add_parser(
        "seal",
        help=said,
        example="lm-latent-eval seal DIR",
    )
    seal.add_argument("checkpoint", type=Path, help="the directory")
    seal.set_defaults(run=_seal)


def _seal(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import seal

    sealed = seal(args.checkpoint)
    print(
        f"sealed {args.checkpoint}: a {sealed.name} model, checkpoint {sealed.digest}"
    )
