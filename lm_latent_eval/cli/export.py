"""``lm-latent-eval export``: results in the formats of archives and leaderboards."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, say_idle

FORMATS = ("every-eval-ever", "hf-eval-results", "model-card")
_OF = {
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
"""Options of each format."""


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    export = commands.add_parser(
        "export",
        help=said,
        description="A result that lacks what an export must state is refused.",
        example="lm-latent-eval export results --to model-card --model-id ME/MODEL "
        "--output DIR/README.md",
    )
    export.add_argument("results", type=Path, help="as `compare` takes them")
    export.add_argument("--to", choices=FORMATS, required=True)
    export.add_argument(
        "--output",
        type=Path,
        required=True,
        help="the archive's folder, the model repository's, or its README.md",
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
    from lm_latent_eval.report.results import read

    others = {name for to, names in _OF.items() if to != args.to for name in names}
    say_idle(args, others - {*_OF[args.to]}, f"--to {args.to} has no place for it")
    records = read(args.results)
    if args.to == "hf-eval-results":
        written = hub.export_results(records, args.output, args.task_id)
    elif args.to == "model-card":
        name = _needed(args, "model_id")
        written = [hub.export_card(records, args.output, name)]
    else:
        from lm_latent_eval.arguments import one_of

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
        written = every_eval_ever.export(records, source, args.output)
    for path in written:
        print(f"wrote {path}")


def _needed(args: argparse.Namespace, name: str) -> str:
    value = getattr(args, name)
    if not value:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"--to {args.to} needs {option}, which no result says")
    return str(value)
