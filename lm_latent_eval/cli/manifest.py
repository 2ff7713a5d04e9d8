"""``lm-latent-eval manifest``: accept a checkpoint that was changed by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    manifest = commands.add_parser(
        "manifest", help=said, example="lm-latent-eval manifest DIR"
    )
    manifest.add_argument("checkpoint", type=Path, help="the directory")
    manifest.set_defaults(run=_rewrite)


def _rewrite(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import rewrite_manifest

    loaded = rewrite_manifest(args.checkpoint)
    print(
        f"wrote the manifest of {args.checkpoint}: a {loaded.name} model, checkpoint "
        f"{loaded.digest}"
    )
