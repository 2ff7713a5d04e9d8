"""The command line: ``lm-latent-eval``, a module a command.

Parsers are built without importing torch, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from lm_latent_eval import __version__
from lm_latent_eval.cli import (
    compare,
    convert,
    distort,
    estimate,
    explain,
    export,
    recompute,
    report,
    seal,
    study,
    tasks,
    text,
    thoughts,
    train,
)
from lm_latent_eval.cli.arguments import Commands, Parser, headings
from lm_latent_eval.durable import no_room

EXPECTED = (ValueError, OSError, FloatingPointError, ModuleNotFoundError)
"""Errors whose message is for users."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what it could complete
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(argv)
    # Read when torch is loaded. Threads that wait awake keep other processes from the
    # cores that they wait for: beside one, two of them were twenty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with _stopped_by(signal.SIGTERM):
            status = int(args.run(args) or 0)
            _flush()
            return status
    except KeyboardInterrupt as stop:
        # The note of the outermost output: what is kept there.
        kept = getattr(stop, "__notes__", ["nothing is kept"])[-1]
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except Exception as err:
        said = no_room(err) or err
        if not isinstance(said, EXPECTED):
            raise
        print(f"lm-latent-eval: {said}", file=sys.stderr)
        with suppress(OSError):
            _flush()
        return 2


def _flush() -> None:
    """Print what is left; where that fails, Python shall not try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
        raise


@contextmanager
def _stopped_by(signal_number: int) -> Iterator[None]:
    """Let a signal end a command as Ctrl-C does."""

    def stop(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt(number)

    before = signal.signal(signal_number, stop)
    try:
        yield
    finally:
        signal.signal(signal_number, before)


_SECTIONS = {
    "scores": (estimate, compare, explain, recompute, report, export, thoughts),
    "models": (train, convert, text, seal),
    "studies": (study, distort),
    "lm_eval": (tasks,),
}
_COMPLETION = """\
completion by the tab key (pip install 'lm-latent-eval[completion]'), in the start-up \
file of bash or zsh:
  eval "$(register-python-argcomplete lm-latent-eval)"
"""


def _parser() -> Parser:
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
    sections: dict[str, list[tuple[str, str]]] = {}
    for title, modules in _SECTIONS.items():
        before = len(commands.listed)
        for module in modules:
            module.add_to(commands)
        sections[title] = commands.listed[before:]
    parser.description = (
        "Latent language models: train, convert and score them. `lm-latent-eval "
        f"COMMAND --help` has the options and an example.\n{headings(sections)}"
    )
    return parser
