"""``lm-latent-eval report``: results on one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands
from lm_latent_eval.cli.compare import add_comparing, comparing, read_sides


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    report = commands.add_parser(
        "report",
        help=said,
        description="The page needs nothing else, and no network.",
        example="lm-latent-eval report A.jsonl B.jsonl --output report.html",
    )
    report.add_argument("results", nargs="+", help="as `compare` takes them")
    report.add_argument(
        "--output", type=Path, default=Path("report.html"), help="default: report.html"
    )
    report.add_argument(
        "--figures", type=Path, help="a folder for its charts as PNG, SVG and PDF"
    )
    add_comparing(report)
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.page import page

    labels, sides = read_sides(args.results, args)
    asked = page.Options(comparing(args), args.power)
    page.write(sides, labels, args.output, args.figures, asked)
    print(f"wrote {args.output}")
