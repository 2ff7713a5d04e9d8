"""Commands that read results: explain, recompute and export."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, add_format, read_format, warn_of_idle


def add_explain(commands: Commands, summary: str) -> None:
    explain = commands.add_parser(
        "explain",
        help=summary,
        example="lm-latent-eval explain results",
    )
    explain.add_argument(
        "results", type=Path, help="the folder of --output_path, or a file of estimates"
    )
    explain.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.explain import explain

    print(explain(args.results))


def add_recompute(commands: Commands, summary: str) -> None:
    recompute = commands.add_parser(
        "recompute",
        help=summary,
        example="lm-latent-eval recompute results --format csv",
    )
    recompute.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="the folder of --output_path, or a file in it; or the files of all shards "
        "of a run, or their folder",
    )
    add_format(recompute)
    recompute.set_defaults(run=_recompute)


def _recompute(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.numbers import ERRORS, rows, table
    from lm_latent_eval.report.runs import read_together
    from lm_latent_eval.report.tables import frame, rendered

    kind = read_format(args)
    runs = read_together(args.results)
    if kind == "text":
        print("\n\n".join(map(table, runs)))
    else:
        for run in runs:
            if not run.finished:
                print(f"{run.task}: not finished", file=sys.stderr)
        numbers = [row for run in runs for row in rows(run)]
        print(rendered(frame(numbers), kind, ERRORS))


_EXPORTS = {
    "every-eval-ever": (
        "model_id",
        "organization",
        "relationship",
        "availability",
        "collection",
    ),
    "hf-eval-results": ("task_id",),
    "model-card": ("model_id",),
}
"""Formats, and the options of each."""


def add_export(commands: Commands, summary: str) -> None:
    export = commands.add_parser(
        "export",
        help=summary,
        description="A result that lacks what an export must state is refused.",
        example="lm-latent-eval export results --to model-card --model-id ME/MODEL "
        "--output DIR/README.md",
    )
    export.add_argument(
        "results", type=Path, help="the folder of --output_path, or a file of estimates"
    )
    export.add_argument("--to", choices=tuple(_EXPORTS), required=True)
    export.add_argument(
        "--output",
        type=Path,
        required=True,
        help="every-eval-ever: the archive's folder; hf-eval-results: the model "
        "repository's; model-card: its README.md",
    )
    export.add_argument("--model-id", help="developer/model, as on the hub")
    export.add_argument("--organization", help="who evaluated (every-eval-ever)")
    export.add_argument(
        "--relationship",
        help="of them to the model: first_party, third_party, collaborative or other",
    )
    export.add_argument(
        "--availability", default="unknown", help="open_weights or closed_weights"
    )
    export.add_argument("--collection", default="lm_latent_eval", help="of the archive")
    export.add_argument("--task-id", help="as the benchmark names it (hf-eval-results)")
    export.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.export import every_eval_ever, hub
    from lm_latent_eval.report.runs import read

    options = {name for names in _EXPORTS.values() for name in names}
    idle = options - {*_EXPORTS[args.to]}
    warn_of_idle(args, idle, f"--to {args.to} has no place for it")
    runs = read(args.results)
    if args.to == "hf-eval-results":
        written = hub.export_results(runs, args.output, args.task_id)
    elif args.to == "model-card":
        name = _needed(args, "model_id")
        written = [hub.export_card(runs, args.output, name)]
    else:
        from lm_latent_eval.options import one_of

        source = every_eval_ever.Evaluator(
            model_id=_needed(args, "model_id"),
            organization=_needed(args, "organization"),
            relationship=one_of(
                "--relationship",
                _needed(args, "relationship"),
                every_eval_ever.RELATIONSHIPS,
            ),
            availability=one_of(
                "--availability", args.availability, every_eval_ever.AVAILABILITIES
            ),
            collection=args.collection,
        )
        written = every_eval_ever.export(runs, source, args.output)
    for path in written:
        print(f"wrote {path}")


def _needed(args: argparse.Namespace, name: str) -> str:
    value = getattr(args, name)
    if not value:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"--to {args.to} needs {option}, which no result says")
    return str(value)
