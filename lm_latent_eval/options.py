"""Options of users: parsing, type checks, and tables whose docstrings are the help.

Options come from Python, ``--model_args`` and the command line. A table of them is a
dataclass, which these and docs/options.md read: name, type and default of an option are
those of its field, its help stands under ``Attributes:``, and ``option`` adds how a
value is read and what it can be. Imports nothing heavy, so ``--help`` is quick.

A model that scores strings its own way has a table of its own, and ``read`` checks what
it is given (``scoring.interface.TextModel``).

Example:
    >>> from dataclasses import dataclass
    >>> from functools import partial
    >>> from lm_latent_eval.options import option, read, table, whole
    >>> @dataclass(frozen=True)
    ... class Options:
    ...     '''How texts are unmasked.
    ...
    ...     Attributes:
    ...         steps: Of unmasking, or ``all``.
    ...     '''
    ...     steps: int = option(64, partial(whole, least=1))
    >>> read(Options, {"steps": "1e2"})
    Options(steps=100)
    >>> read(Options, {"step": 5})
    Traceback (most recent call last):
        ...
    ValueError: option='step': expected one of steps (did you mean steps?)
    >>> [(row.name, row.kind, row.default, row.help) for row in table(Options)]
    [('steps', 'whole number', 64, 'Of unmasking, or ``all``.')]
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, Self, TypeVar

TRUTHS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}
"""Words for true and false, in lower case."""


def integer(value: Any) -> int:
    """Read a whole number, given as a number or a string.

    Raises:
        ValueError: If it is none.

    Example:
        >>> integer("12"), integer("1e3"), integer(1e3)
        (12, 1000, 1000)
    """
    try:
        return int(str(value))
    except ValueError:
        number = math.nan if isinstance(value, bool) else _float(value)
    if not number.is_integer():
        raise ValueError(f"expected a whole number, not {value!r}")
    return int(number)


def _named_integer(name: str, value: Any) -> int:
    try:
        return integer(value)
    except ValueError as err:
        raise ValueError(f"{name}={value!r}: expected a whole number") from err


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Read a whole number that is not too small, and not too large if there is a limit.

    Raises:
        ValueError: If it is none, or is.
    """
    try:
        number = integer(value)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(
            f"{name}={value!r}: expected a whole number of at least {least}{limit}"
        )
    return number


def positive(name: str, value: Any) -> float:
    """Read a positive finite number.

    Raises:
        ValueError: If it is none.
    """
    number = math.nan if isinstance(value, bool) else _float(value)
    if not (0 < number < math.inf):
        raise ValueError(f"{name}={value!r}: expected a positive number")
    return number


def at_least_0(name: str, value: Any) -> float:
    """Read a finite number that is not negative.

    Raises:
        ValueError: If it is none.
    """
    number = math.nan if isinstance(value, bool) else _float(value)
    if not (0 <= number < math.inf):
        raise ValueError(f"{name}={value!r}: expected a number of at least 0")
    return number


def truth(name: str, value: Any) -> bool:
    """Read true or false.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> truth("log_weights", "True"), truth("log_weights", "no")
        (True, False)
    """
    if (lower := str(value).lower()) not in TRUTHS:
        raise ValueError(f"{name}={value!r}: expected true or false")
    return TRUTHS[lower]


def one_of(name: str, value: Any, names: Sequence[str]) -> str:
    """Read one of several names; lm-eval makes None of ``none``.

    Raises:
        ValueError: If it is none of them; near ones are suggested.

    Example:
        >>> one_of("end", None, ["none", "eos"])
        'none'
    """
    if value is None and "none" in names:
        return "none"
    if value not in names:
        near = difflib.get_close_matches(str(value), names)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(names)}{hint}")
    return str(value)


def _float(value: Any) -> float:
    """Read a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


T = TypeVar("T")

Reader = Callable[[str, Any], Any]
"""Name and value as they come from a command line -> the value, or a ValueError."""

_KINDS = {
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
_READERS: dict[str, Reader] = {
    "bool": truth,
    "float": positive,
    "int": _named_integer,
    "str": lambda name, value: str(value),
}


@dataclass(frozen=True)
class Option:
    """One row of a table."""

    name: str
    kind: str
    """Type for users: ``whole number``, ``text``, ..."""
    default: object
    unset: str | None
    """Meaning of the default None."""
    help: str
    """A sentence; names of options and values stand between double backticks."""
    read: Reader
    choices: Callable[[], Sequence[str]] | None
    """The names that it can have; others of the form ``package.module:Name``."""

    @property
    def sentences(self) -> str:
        """The help, and the choices where it does not name them all."""
        names = [f"``{name}``" for name in self.choices()] if self.choices else []
        if all(name in self.help for name in names):
            return self.help
        return f"{self.help} One of {', '.join(names)}."


def option(
    default: T,
    read: Reader | None = None,
    *,
    choices: Callable[[], Sequence[str]] | None = None,
    unset: str | None = None,
) -> T:
    """Return the field of an option.

    Args:
        default: Its default.
        read: How a value is read; None goes by the field's type.
        choices: What lists the values that can be named.
        unset: What None stands for, where that is the default.
    """
    about = {"read": read, "choices": choices, "unset": unset}
    found: T = field(default=default, metadata=about)
    return found


def choice(default: T, names: Sequence[str], *, unset: str | None = None) -> T:
    """Return the field of an option that is one of several names.

    Args:
        default: Its default.
        names: What it can be.
        unset: What None stands for, where that is the default.
    """
    read = partial(one_of, names=names)
    return option(
        default,
        read if unset is None else optional(read),
        choices=lambda: names,
        unset=unset,
    )


def optional(read: Reader) -> Reader:
    """Let a value be left out: None, ``none`` and an empty string are None."""
    return lambda name, value: (
        None if value in (None, "", "none") else read(name, value)
    )


def table(kind: type[Any]) -> list[Option]:
    """Return the rows of a dataclass, in the order of its fields.

    Raises:
        ValueError: If its docstring does not say what a field is.
    """
    helps = _helps(kind)
    if missing := [each.name for each in fields(kind) if each.name not in helps]:
        raise ValueError(f"the docstring of {kind.__name__} lacks {missing[0]}")
    return [_row(each, helps[each.name]) for each in fields(kind)]


def read(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Check and convert arguments as they come from a command line.

    Raises:
        ValueError: If there is no such option, or a value is not one that it can have.
    """
    rows = {row.name: row for row in table(kind)}
    for name in arguments:
        one_of("option", name, list(rows))
    return kind(**{n: rows[n].read(n, value) for n, value in arguments.items()})


class OptionTable:
    """Base class of dataclasses that are tables of options."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Check and convert options as they come from a command line.

        Raises:
            ValueError: If there is no such option, or a value is not one that it can
                have.
        """
        return read(cls, options)

    @property
    def idle(self) -> tuple[str, ...]:
        """Options that have no effect, given the others."""
        return ()

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options, in the order of the table."""
        return [row.name for row in table(cls)]


def _row(each: Field[Any], said: str) -> Option:
    kind = each.type  # a string where annotations are not evaluated
    named = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    types = [name for name in named.split(" | ") if name != "None"]
    return Option(
        each.name,
        " or ".join(_KINDS.get(name, name) for name in types),
        each.default,
        each.metadata.get("unset"),
        said,
        each.metadata.get("read") or _READERS.get(types[0], _READERS["str"]),
        each.metadata.get("choices"),
    )


def _helps(kind: type[Any]) -> dict[str, str]:
    """Return what docstrings say of attributes, those of base classes included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        text = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2]
        listed = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
        found |= {name: " ".join(said.split()) for name, said in listed}
    return found
