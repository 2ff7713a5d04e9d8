"""``lm-latent-eval distort``: models of languages with known probabilities."""

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
from lm_latent_eval.cli.distort import languages, measure
from lm_latent_eval.scoring.options import OpeningOptions


def add_distort(commands: Commands, summary: str) -> None:
    """Add ``distort``."""
    distort = commands.add_parser(
        "distort",
        help=summary,
        description="Draw sequences of a language, score them with a model, and "
        "measure its errors, as LeBrun et al. (2022) do.",
    )
    steps = distort.add_subparsers(required=True, metavar="STEP")
    for add in (
        languages.add_sample,
        measure.add_score,
        measure.add_measure,
    ):
        add(steps)
