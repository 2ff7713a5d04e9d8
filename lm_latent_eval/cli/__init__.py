"""The command line: ``lm-latent-eval``.

Only the module of the command that runs is imported, and only its parser is built,
without torch, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lm_latent_eval import __version__
from lm_latent_eval.cli.arguments import Commands, Parser, headings
from lm_latent_eval.cli.boundary import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    return guarded(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what it could complete
        import argcomplete

        argcomplete.autocomplete(_parser())
    args = _parser(words).parse_args(words)
    # Read when torch is loaded. Threads that wait awake keep other processes from the
    # cores that they wait for: beside one, two of them were twenty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from lm_latent_eval.ledger.files import writing

    with writing(getattr(args, "output", None)):
        return int(args.run(args) or 0)


_SECTIONS = {
    "scores": {
        "estimate": "score a file of texts, with Monte Carlo errors",
        "surprisal": "say how surprising each word of a text is, with errors",
        "latents": "show the most probable latents of texts",
        "calibrate": "say how far estimates are from log p on texts of the model",
        "compare": "compare models on the same texts, with errors and a verdict",
        "audit": "test from outside whether a model's scores are a likelihood",
        "explain": "say what the numbers of a run mean",
        "recompute": "print the numbers of a run in every unit, without its model",
        "report": "show and compare results on one page of HTML",
        "export": "write results for archives, leaderboards and model cards",
    },
    "models": {
        "train": "train a model and write a checkpoint",
        "convert": "turn a model of other code into a checkpoint",
        "text": "write the plain texts of trees or CoNLL documents",
        "manifest": "accept a checkpoint that was changed by hand as it is",
    },
    "studies": {
        "distort": "compare models with artificial languages whose probabilities are "
        "known",
    },
    "lm_eval": {
        "tasks": "print the folder of our task files, for lm_eval --include_path",
    },
}
"""Section -> command -> its line in the list of commands."""
_MODULES = {
    **dict.fromkeys(("explain", "recompute", "export"), "results"),
    **dict.fromkeys(("convert", "text", "manifest", "tasks"), "files"),
    **dict.fromkeys(("surprisal", "latents", "calibrate"), "estimate"),
    "report": "compare",
}
"""Command -> the module of its ``add_COMMAND``, where that has another name."""
_COMPLETION = """\
completion by the tab key (pip install 'lm-latent-eval[completion]'), in the start-up \
file of bash or zsh:
  eval "$(register-python-argcomplete lm-latent-eval)"
"""


def _parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of all commands, in full of those that are named.

    Args:
        words: Words of a command line; None is all commands in full.
    """
    parser = Parser(
        prog="lm-latent-eval",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        epilog=_COMPLETION,
    )
    parser.add_argument(
        "--version", action="version", version=f"lm-latent-eval {__version__}"
    )
    # Listed in sections by the description; argparse knows one list alone.
    commands: Commands = parser.add_subparsers(
        required=True, metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS
    )
    for name, summary in (row for rows in _SECTIONS.values() for row in rows.items()):
        if words is None or name in words:
            module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
            getattr(module, f"add_{name}")(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    parser.description = (
        "Latent language models: train, convert and score them. `lm-latent-eval "
        f"COMMAND --help` has the options and an example.\n{headings(_SECTIONS)}"
    )
    return parser
