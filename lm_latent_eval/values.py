"""Validation of what files hold: strict JSON, and rules for configuration values.

Python's ``json`` keeps the last value of a name that stands twice in an object, and
takes ``NaN`` for a number. Here both are refused.

Example:
    >>> rules = {"size": Whole(1), "skipped": Each(Whole(0, below="size"))}
    >>> check({"size": 3, "skipped": [0, 2]}, rules)
    >>> check({"size": 3, "skipped": [3]}, rules)
    Traceback (most recent call last):
        ...
    ValueError: skipped is [3]: expected a list of distinct values, each a whole number
    of 0 <= n < 3
    >>> check({"size": True, "skipped": []}, rules)
    Traceback (most recent call last):
        ...
    ValueError: size is True: expected a whole number of 1 <= n <= 2147483647
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, NoReturn, Protocol, TypeVar


def parse(text: str, *, infinities: bool = False) -> Any:
    """Parse one JSON value.

    Args:
        text: The value.
        infinities: Whether ``NaN`` and ``Infinity`` are allowed, as other programs
            write them.

    Raises:
        ValueError: If it is invalid, a name is repeated in an object, or values are
            nested too deeply.

    Example:
        >>> parse('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ...
        ValueError: 'a' stands twice in one place
    """
    constants = None if infinities else _no_number
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=constants)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r:.60} stands twice in one place")
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


T = TypeVar("T")
_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


def checked(value: Any, kind: type[T], what: str) -> T:
    """Value of a required type, where true is no number.

    Raises:
        TypeError: If it is of another type.

    Example:
        >>> checked("a b", list, "tokens")
        Traceback (most recent call last):
        ...
        TypeError: tokens: expected a list, not 'a b'
    """
    if type(value) is not kind:
        raise TypeError(f"{what}: expected {_NAMES[kind]}, not {shown(value)}")
    return value


def strings(value: Any, what: str) -> list[str]:
    """List of strings; a single string is refused.

    Raises:
        TypeError: If it is anything else.
    """
    return [checked(each, str, what) for each in checked(value, list, what)]


Values = Mapping[str, Any]
Limit = int | str
"""Number, or name of another value."""
MOST = 2**31 - 1
"""Default upper limit of numbers, as in C."""


class Rule(Protocol):
    """Rule of one value; ``values`` are all of them, for limits by name."""

    def allows(self, value: Any, values: Values) -> bool: ...

    def expected(self, values: Values) -> str: ...


@dataclass(frozen=True)
class Whole:
    """A whole number; ``True`` is none, nor is 1.0."""

    least: Limit = 0
    most: Limit = MOST
    below: Limit | None = None

    def allows(self, value: Any, values: Values) -> bool:
        return (
            type(value) is int
            and _number(self.least, values) <= value <= _number(self.most, values)
            and (self.below is None or value < _number(self.below, values))
        )

    def expected(self, values: Values) -> str:
        least = f"a whole number of {_number(self.least, values)} <= n"
        if self.below is not None:
            return f"{least} < {_number(self.below, values)}"
        return f"{least} <= {_number(self.most, values)}"


@dataclass(frozen=True)
class Share:
    """A number of at least 0 and less than 1."""

    def allows(self, value: Any, values: Values) -> bool:
        return type(value) in (int, float) and 0 <= value < 1

    def expected(self, values: Values) -> str:
        return "a number of 0 <= p < 1"


@dataclass(frozen=True)
class Flag:
    """``True`` or ``False``; 1 is neither, nor is ``None``."""

    def allows(self, value: Any, values: Values) -> bool:
        return isinstance(value, bool)

    def expected(self, values: Values) -> str:
        return "true or false"


@dataclass(frozen=True)
class Matching:
    """Text that matches a pattern."""

    pattern: str
    what: str

    def allows(self, value: Any, values: Values) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None

    def expected(self, values: Values) -> str:
        return self.what


class OneOf:
    """One of given names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def allows(self, value: Any, values: Values) -> bool:
        return isinstance(value, str) and value in self.names

    def expected(self, values: Values) -> str:
        return f"one of {', '.join(self.names)}"


@dataclass(frozen=True)
class Each:
    """A list of distinct values that all follow one rule."""

    rule: Rule

    def allows(self, value: Any, values: Values) -> bool:
        return (
            isinstance(value, list | tuple)
            and all(self.rule.allows(each, values) for each in value)
            and len(set(value)) == len(value)
        )

    def expected(self, values: Values) -> str:
        return f"a list of distinct values, each {self.rule.expected(values)}"


Rules = Mapping[str, Rule]


def check(values: Values, rules: Rules) -> None:
    """Check values by their rules, in the order of the rules.

    Raises:
        ValueError: If one is missing, or against its rule.
    """
    for name, rule in rules.items():
        if name not in values:
            raise ValueError(f"{name} is missing: expected {rule.expected(values)}")
        if not rule.allows(values[name], values):
            raise ValueError(
                f"{name} is {values[name]!r}: expected {rule.expected(values)}"
            )


def _number(limit: Limit, values: Values) -> int:
    return limit if isinstance(limit, int) else int(values[limit])
