"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, TypeVar

from lm_latent_eval.arguments import integer, one_of

T = TypeVar("T")

Commands = Any
"""What ``add_subparsers`` returns; argparse does not name its type."""


class Parser(argparse.ArgumentParser):
    """Reads whole numbers as they are read elsewhere: ``1e3`` is one thousand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``ArgumentParser``; commands get such a parser too."""
        super().__init__(*args, **kwargs)
        self.register("type", int, integer)


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
