"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from lm_latent_eval.arguments import integer, one_of

T = TypeVar("T")

Commands = Any
"""What ``add_subparsers`` returns; argparse does not name its type."""


class _Noted(argparse._StoreAction):
    """Stores a value, and under ``given`` that its option was there."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, values, option_string)
        if option_string is not None:
            given = getattr(namespace, "given", {})
            namespace.given = {**given, self.dest: self.option_strings[-1]}


class Parser(argparse.ArgumentParser):
    """Reads whole numbers as they are read elsewhere: ``1e3`` is one thousand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``ArgumentParser``; commands get such a parser too."""
        super().__init__(*args, **kwargs)
        self.register("type", int, integer)
        self.register("action", None, _Noted)


def say_idle(args: argparse.Namespace, names: Iterable[str] | None, why: str) -> None:
    """Say which of the options that were given have no effect.

    Args:
        args: As parsed.
        names: What has no effect; None is all but what tells where output goes.
        why: The reason.
    """
    given: dict[str, str] = getattr(args, "given", {})
    names = given.keys() - _OF_OUTPUT if names is None else names
    if idle := sorted(given[name] for name in names if name in given):
        print(f"{', '.join(idle)}: no effect, {why}", file=sys.stderr)


_OF_OUTPUT = {"report", "output", "format"}


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add how a command prints its table."""
    parser.add_argument(
        "--format", default="text", help="of the table: text (default), csv or latex"
    )


def read_format(args: argparse.Namespace) -> str:
    """Read it back.

    Raises:
        ValueError: If there is no such format.
    """
    from lm_latent_eval.report.tabular import FORMATS

    return one_of("--format", args.format, FORMATS)


def add_fields(parser: argparse.ArgumentParser, options: Any) -> None:
    """Add one option a field of a dataclass of numbers, a type or an instance of it."""
    for field in dataclasses.fields(options):
        default = getattr(options, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(default),
            default=default,
            help=f"default: {default}",
        )


def fields(options: type[T], args: argparse.Namespace) -> T:
    """Read that dataclass back."""
    names = (field.name for field in dataclasses.fields(options))  # type: ignore[arg-type]
    return options(**{name: getattr(args, name) for name in names})
