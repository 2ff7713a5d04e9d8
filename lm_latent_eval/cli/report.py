"""``lm-latent-eval report``: results on one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path
from string import ascii_uppercase

from lm_latent_eval.cli.arguments import Commands


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
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from lm_latent_eval.cli.compare import runs
    from lm_latent_eval.report.page import page
    from lm_latent_eval.report.results import read

    labels = dict(zip(ascii_uppercase, args.results, strict=False))
    if len(labels) < len(args.results):
        raise ValueError(f"a page shows at most {len(ascii_uppercase)} results")
    sides = {name: [read(run) for run in runs(label)] for name, label in labels.items()}
    page.write(sides, labels, args.output, args.figures)
    print(f"wrote {args.output}")
