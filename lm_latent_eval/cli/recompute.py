"""``lm-latent-eval recompute``: the numbers of a run again, without its model."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    recompute = commands.add_parser(
        "recompute", help="the numbers of a run in every unit, without its model"
    )
    recompute.add_argument(
        "results", type=Path, help="the folder of --output_path, or a file in it"
    )
    recompute.add_argument("--format", default="text", help="text, csv or latex")
    recompute.set_defaults(run=_recompute)


def _recompute(args: argparse.Namespace) -> None:
    from lm_latent_eval.arguments import one_of
    from lm_latent_eval.report.numbers import rows, table
    from lm_latent_eval.report.results import read
    from lm_latent_eval.report.tabular import FORMATS, rendered

    kind = one_of("--format", args.format, FORMATS)
    records = read(args.results)
    if kind == "text":
        print("\n\n".join(map(table, records)))
    else:
        print(rendered([row for record in records for row in rows(record)], kind))
