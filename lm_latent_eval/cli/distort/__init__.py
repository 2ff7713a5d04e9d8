"""``lm-latent-eval distort``: models of languages with known probabilities."""

from __future__ import annotations

from lm_latent_eval.cli.arguments import Commands
from lm_latent_eval.cli.distort import languages, measure, study, train, trees


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    distort = commands.add_parser(
        "distort",
        help=said,
        description="The experiments of LeBrun et al. (2022), step by step or all at "
        "once.",
    )
    steps = distort.add_subparsers(required=True, metavar="STEP")
    for step in (languages, train, trees, measure, study):
        step.add_to(steps)
