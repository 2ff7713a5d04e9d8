"""``lm-latent-eval distort trees``: derivations of a corpus as a treebank."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(steps: Commands) -> None:
    """Add ``trees``."""
    trees = steps.add_parser(
        "trees",
        help="write the derivations of a corpus in brackets",
        description="The trees that the sequences of a grammar were drawn by, for "
        "`lm-latent-eval train rnng --data`.",
        example="lm-latent-eval distort trees --corpus corpus --output trees.mrg",
    )
    trees.add_argument(
        "--corpus", type=Path, required=True, help="folder that `sample` wrote"
    )
    trees.add_argument(
        "--output", type=Path, required=True, help="file ending in .ptb or .mrg"
    )
    trees.set_defaults(run=_trees)


def _trees(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.languages.corpus import Corpus
    from lm_latent_eval.distortion.learners.treebank import write_trees

    number = write_trees(Corpus.open(args.corpus), args.output)
    print(f"wrote {args.output}: {number} trees")
