"""``lm-latent-eval distort``: models of languages with known probabilities.

The experiments of LeBrun et al. (2022), step by step or, by ``study``, all at once.
"""

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
from lm_latent_eval.cli.distort import languages, measure, train
from lm_latent_eval.scoring.options import OpeningOptions


def add_distort(commands: Commands, summary: str) -> None:
    """Add ``distort``."""
    distort = commands.add_parser(
        "distort",
        help=summary,
        description="The experiments of LeBrun et al. (2022), step by step or all at "
        "once.",
    )
    steps = distort.add_subparsers(required=True, metavar="STEP")
    for add in (
        languages.add_sample,
        languages.add_tokenizer,
        train.add_train,
        languages.add_trees,
        measure.add_score,
        measure.add_measure,
        measure.add_productivity,
        measure.add_show,
        _add_study,
    ):
        add(steps)


def _add_study(steps: Commands) -> None:
    """Add ``study``."""
    study = steps.add_parser(
        "study",
        help="repeat the paper: figures 1 to 13, tables, claims",
        description="Trains languages on natural text and models on what they say, "
        "scores both, and writes tables (tables.md, and each as CSV and LaTeX) and "
        "figures (PNG, SVG, PDF, and the numbers as JSON) into OUTPUT/report. An "
        "interrupted study goes on where it was.",
        example="lm-latent-eval distort study --output distortion",
    )
    study.add_argument("--output", type=Path, required=True, help="folder of results")
    study.add_argument(
        "--plan",
        default="small",
        help="small (minutes on two cores), gpt2 (the paper's sizes, for GPUs), or a "
        "JSON file (default: small)",
    )
    study.add_argument(
        "--text",
        type=Path,
        help="natural text, one text a line or JSON lines (default: the demonstration "
        "corpus)",
    )
    study.add_argument(
        "--jobs",
        type=int,
        help="steps at a time (default: as many as processors, or one on a GPU)",
    )
    add_options(study, OpeningOptions, ("device",))
    study.add_argument(
        "--report",
        action="store_true",
        help="run nothing: report on the study in --output",
    )
    add_format(study)
    study.set_defaults(run=_study)


def _study(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.report.study import write_report
    from lm_latent_eval.report.tabular import TABLES_FILE

    kind, folder = read_format(args), args.output / "report"
    if args.report:
        warn_of_idle(args, None, "--report runs nothing")
    else:
        _run(args)
    print(write_report(args.output, folder, kind))
    print(f"wrote {folder / TABLES_FILE} and the figures beside it")


def _run(args: argparse.Namespace) -> None:
    import os

    import torch

    from lm_latent_eval.distortion.study.plan import DistortionPlan
    from lm_latent_eval.distortion.study.run import DistortionStudy
    from lm_latent_eval.registry import require

    # What is missing is an error now, not after an hour of training.
    require("matplotlib", extra="plots")
    gpu = args.device != "cpu" and torch.cuda.is_available()
    jobs = (1 if gpu else os.cpu_count() or 1) if args.jobs is None else args.jobs
    study = DistortionStudy(
        DistortionPlan.read(args.plan),
        args.output,
        args.text,
        jobs=jobs,
        device=args.device,
    )
    study.run()
