"""JSON that somebody else wrote: what could be read in two ways is refused.

Python's ``json`` keeps the last value of a name that stands twice in an object, takes
``NaN`` for a number, and runs out of stack where values are nested too deeply. A string
where a list is expected would be read letter by letter.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from lm_latent_eval.text.files import read_text

T = TypeVar("T")

_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


def parse(text: str) -> Any:
    """Parse one JSON value.

    Raises:
        ValueError: If it is none, a name stands twice in an object, or values are
            nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_number)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err


def read(path: Path) -> Any:
    """Read a file of one JSON value.

    Raises:
        ValueError: As for ``parse``, or if the file is not UTF-8.
    """
    return parse(read_text(path))


def checked(value: Any, kind: type[T], what: str) -> T:
    """Return a value that is of a type, where true is no number.

    Raises:
        TypeError: If it is of another one.

    Example:
        >>> checked("a b", list, "tokens")
        Traceback (most recent call last):
        ...
        TypeError: tokens: expected a list, not 'a b'
    """
    if type(value) is not kind:
        raise TypeError(f"{what}: expected {_NAMES[kind]}, not {value!r:.60}")
    return value


def strings(value: Any, what: str) -> list[str]:
    """Return a list of strings.

    Raises:
        TypeError: If it is not one.
    """
    return [checked(each, str, what) for each in checked(value, list, what)]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} stands twice in one place")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
