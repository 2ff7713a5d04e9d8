"""``lm-latent-eval recompute``: metrics of a run from its records alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, add_format, read_format


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    recompute = commands.add_parser(
        "recompute",
        help=said,
        example="lm-latent-eval recompute results --format csv",
    )
    recompute.add_argument(
        "results", type=Path, help="the folder of --output_path, or a file in it"
    )
    add_format(recompute)
    recompute.set_defaults(run=_recompute)


def _recompute(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.numbers import rows, table
    from lm_latent_eval.report.results import read
    from lm_latent_eval.report.tabular import Table, rendered

    kind = read_format(args)
    records = read(args.results)
    if kind == "text":
        print("\n\n".join(map(table, records)))
    else:
        found = [row for record in records for row in rows(record)]
        print(rendered(Table.of(found), kind))
