"""``lm-latent-eval explain``: the numbers of an lm_eval run in plain words."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    explain = commands.add_parser(
        "explain",
        help=said,
        example="lm-latent-eval explain results",
    )
    explain.add_argument(
        "results", type=Path, help="the folder of --output_path, or a file of estimates"
    )
    explain.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.explain import explain

    print(explain(args.results))
