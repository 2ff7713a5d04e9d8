"""The command line: ``lm-latent-eval``, a module a command.

Parsers are built without importing torch, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lm_latent_eval.cli import convert, distort, estimate, explain, seal, study, train


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; `train`, `estimate --output`, `study` and `distort` go on "
            "where they were",
            file=sys.stderr,
        )
        return 130
    except (ValueError, OSError, FloatingPointError, ModuleNotFoundError) as err:
        print(f"lm-latent-eval: {err}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lm-latent-eval",
        description="Latent language models: train, convert and score them.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (train, convert, seal, estimate, study, distort, explain):
        command.add_to(commands)
    return parser
