"""Arguments shared by several commands, and the parser that reads them."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from lm_latent_eval.options import Option, integer, one_of, table

T = TypeVar("T")

Commands = Any
"""Type that ``add_subparsers`` returns, to which argparse gives no name."""


class _Noting(argparse.Action):
    """Argparse action that records, under ``given``, that an option was given."""

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


class _Noted(_Noting, argparse._StoreAction):
    pass


class _NotedEach(_Noting, argparse._AppendAction):
    pass


class _NotedFlag(_Noting, argparse._StoreTrueAction):
    pass


class _Listed(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Subcommands whose description begins with their line in the list of commands."""

    def add_parser(self, name: str, **kwargs: Any) -> Any:
        summary = kwargs.get("help", "")
        more = kwargs.get("description", "")
        kwargs["description"] = f"{summary[:1].upper()}{summary[1:]}. {more}".rstrip()
        return super().add_parser(name, **kwargs)


class _Paragraphs(argparse.HelpFormatter):
    """Help formatter that fills paragraphs and keeps indented lines."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        for kind, name in ((Path, "PATH"), (int, "N"), (float, "X")):
            if action.type is kind:
                return name
        return "NAME"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line if line.startswith(" ") else textwrap.fill(line, width)
            for line in text.splitlines()
        )


class Parser(argparse.ArgumentParser):
    """Parser that reads whole numbers such as ``1e3``."""

    def __init__(self, *args: Any, example: str | None = None, **kwargs: Any) -> None:
        """Take the arguments of ``ArgumentParser``; commands get such a parser too.

        Args:
            *args: Those.
            example: A command line.
            **kwargs: Those.
        """
        if example is not None:
            kwargs["epilog"] = f"example:\n  {example}"
        kwargs["formatter_class"] = _Paragraphs
        super().__init__(*args, **kwargs)
        self.example = example
        self.register("type", int, integer)
        self.register("action", None, _Noted)
        self.register("action", "append", _NotedEach)
        self.register("action", "store_true", _NotedFlag)
        self.register("action", "parsers", _Listed)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the choices, and name the one most like it."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as err:
            like = get_close_matches(str(value), map(str, action.choices or ()), n=1)
            if like:
                err.message += f" (did you mean {like[0]}?)"
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments, and name the option that is most like them."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            like = get_close_matches(left[0], self._option_string_actions, n=1)
            meant = f" (did you mean {like[0]}?)" if like else ""
            self.error(f"unrecognized arguments: {' '.join(left)}{meant}")
        return parsed, left


def output_folder(name: str) -> Path:
    """Read a folder to write into, which need not be there."""
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a file: name a folder")
    return path


def output_file(name: str) -> Path:
    """Read a file to write, which need not be there."""
    path = Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file in it")
    return path


def not_read(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over what a command reads.

    Raises:
        ValueError: If the output is one of the inputs.
    """
    if output.exists() and any(p.exists() and p.samefile(output) for p in inputs):
        raise ValueError(f"{output} is read: write another file")


def headings(commands: Mapping[str, Mapping[str, str]]) -> str:
    width = 1 + max(len(name) for rows in commands.values() for name in rows)
    lines = []
    for title, rows in commands.items():
        lines += ["", f"{title}:"]
        for name, summary in rows.items():
            lines += textwrap.wrap(
                f"{name:<{width}} {summary}",
                76,
                initial_indent="  ",
                subsequent_indent=" " * (width + 3),
            )
    return "\n".join(lines)


def warn_of_idle(
    args: argparse.Namespace, names: Iterable[str] | None, why: str
) -> None:
    """Warn about given options that have no effect.

    Args:
        args: The parsed arguments.
        names: Options without effect; None is all except those of output.
        why: The reason.
    """
    given: dict[str, str] = getattr(args, "given", {})
    names = given.keys() - _OF_OUTPUT if names is None else names
    if idle := sorted(given[name] for name in names if name in given):
        print(f"{', '.join(idle)}: no effect, {why}", file=sys.stderr)


_OF_OUTPUT = {"report", "output", "format"}


def add_format(parser: argparse.ArgumentParser) -> None:
    action = parser.add_argument(
        "--format",
        default="text",
        metavar="NAME",
        help="of the table: text (default) or csv",
    )
    _complete(action, lambda: ("text", "csv"))


def read_format(args: argparse.Namespace) -> str:
    from lm_latent_eval.report.tables import FORMATS

    return one_of("--format", args.format, FORMATS)


Arguments = argparse.ArgumentParser | argparse._ArgumentGroup
_METAVARS = {"whole number": "N", "number": "X", "whole number or text": "N"}


def add_options(
    parser: Arguments, kind: type[Any], names: Collection[str] | None = None
) -> None:
    """Add options of a table, to be read where the model is known.

    Args:
        parser: Parser that gets them.
        kind: The table, see ``lm_latent_eval.options``.
        names: Which; None is all.
    """
    rows = table(kind)
    for row in rows:
        if names is None or row.name in names:
            _complete(_add(parser, row, rows), row.choices)


def given(args: argparse.Namespace, kind: type[Any]) -> dict[str, str]:
    values = {row.name: getattr(args, row.name, None) for row in table(kind)}
    return {name: value for name, value in values.items() if value is not None}


def add_fields(parser: argparse.ArgumentParser, title: str, options: Any) -> None:
    """Add the options of a table of numbers, a dataclass or an instance of it."""
    group = parser.add_argument_group(title)
    kind = options if isinstance(options, type) else type(options)
    rows = table(kind)
    for row in rows:
        default = getattr(options, row.name)
        shown = dataclasses.replace(row, default=default)
        _add(group, shown, rows, type=type(default), default=default)


def fields(options: type[T] | T, args: argparse.Namespace) -> T:
    kind = options if isinstance(options, type) else type(options)
    return kind(**{row.name: getattr(args, row.name) for row in table(kind)})


def _add(
    parser: Arguments, row: Option, rows: Sequence[Option], **more: Any
) -> argparse.Action:
    metavar = _METAVARS.get(row.kind, "NAME")
    text = _help(row, rows)
    return parser.add_argument(_flag(row.name), metavar=metavar, help=text, **more)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _help(row: Option, rows: Sequence[Option]) -> str:
    """Return an option's help in the style of argparse: no sentence, names as flags."""
    names = {each.name for each in rows}

    def spelled(name: re.Match[str]) -> str:
        return _flag(name[1]) if name[1] in names else name[1]

    default = row.default if row.unset is None else row.unset
    text = f"{row.sentences.rstrip('.')} (default: {default})"
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    return re.sub(r"``(.+?)``", spelled, text).replace("%", "%%")


def _complete(
    action: argparse.Action, choices: Callable[[], Sequence[str]] | None
) -> None:
    """Let a shell suggest values; other values are checked elsewhere, if at all."""
    if choices is not None:
        action.completer = lambda **_: choices()  # type: ignore[attr-defined]
