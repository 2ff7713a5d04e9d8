"""``lm-latent-eval study``: estimates by proposal, temperature and sample size."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import (
    Commands,
    add_format,
    add_options,
    read_format,
    warn_of_idle,
)
from lm_latent_eval.options import whole
from lm_latent_eval.scoring.options import OpeningOptions, ScoringOptions


def add_study(commands: Commands, summary: str) -> None:
    """Add ``study``."""
    study = commands.add_parser(
        "study",
        help=summary,
        description="Estimates one corpus in every way that Logan et al. (2020) "
        "compare, and writes rows (JSON lines), tables (Markdown, CSV, LaTeX) and "
        "figures (PNG, SVG, PDF). An interrupted study goes on where it was.",
        example="lm-latent-eval study --pretrained DIR --data texts.jsonl "
        "--output study",
    )
    study.add_argument(
        "--pretrained", metavar="DIR", help="checkpoint directory or hub repository"
    )
    study.add_argument(
        "--data",
        type=Path,
        help="texts: JSON lines with tokens or text, or one text a line",
    )
    study.add_argument("--output", type=Path, required=True, help="folder of results")
    study.add_argument("--limit", type=int, help="only the first texts")
    study.add_argument(
        "--temper",
        nargs="+",
        metavar="PROPOSAL",
        help="proposals to draw from at every temperature, and to search "
        "(default: the one that reads most)",
    )
    study.add_argument(
        "--temperatures",
        type=float,
        nargs="+",
        metavar="T",
        help="default: 0.5 0.9 1 1.1 2 5",
    )
    study.add_argument("--num-samples", type=int, metavar="K", help="default: 1000")
    study.add_argument(
        "--replicate", type=int, metavar="K", help="samples a replicate (default: 100)"
    )
    study.add_argument(
        "--beam-widths", type=int, nargs="*", metavar="K", help="default: 1 10 100"
    )
    add_options(study, ScoringOptions, ("seed", "unk"))
    add_options(study, OpeningOptions, ("batch_size", "device", "dtype"))
    study.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="STUDY",
        help="run nothing: put tables and figures of these studies into --output",
    )
    add_format(study)
    study.set_defaults(run=_study)


def _study(args: argparse.Namespace) -> None:
    from lm_latent_eval.registry import require
    from lm_latent_eval.study.tables import write_report

    require("matplotlib", extra="plots")  # before hours of work, not after
    kind = read_format(args)
    if args.report:
        warn_of_idle(args, None, "--report runs nothing")
        print(write_report(args.report, args.output, kind))
        return
    if not (args.pretrained and args.data):
        raise ValueError("a study needs --pretrained and --data (or --report)")
    _run(args)
    print(write_report([args.output], args.output, kind))


def _run(args: argparse.Namespace) -> None:
    from lm_latent_eval.scoring.model import load
    from lm_latent_eval.study.plan import StudyPlan
    from lm_latent_eval.study.run import Study

    given = {
        "temperatures": args.temperatures and tuple(args.temperatures),
        "num_samples": args.num_samples,
        "replicate": args.replicate,
        "beam_widths": None if args.beam_widths is None else tuple(args.beam_widths),
        "seed": args.seed and whole("seed", args.seed, 0),
        "unk": args.unk,
    }
    choices = {name: value for name, value in given.items() if value is not None}
    model = load(args.pretrained, device=args.device, dtype=args.dtype)
    study = Study(
        model.checkpoint,
        args.data,
        StudyPlan.of(model.checkpoint.model.proposal_names, args.temper, **choices),
        args.output,
        limit=None if args.limit is None else whole("limit", args.limit, 1),
        batch_size=args.batch_size,
    )
    study.run()
