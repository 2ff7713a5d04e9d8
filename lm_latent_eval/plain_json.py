"""Strict JSON: duplicate names and other ambiguities are refused.

Python's ``json`` keeps the last value of a name that stands twice in an object, takes
``NaN`` for a number, and runs out of stack where values are nested too deeply, or
later, where such a value is shown.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

DEEPEST = 100
"""Lists and objects within each other; our own files have fewer than ten."""


def parse(text: str, *, infinities: bool = False) -> Any:
    """Parse one JSON value.

    Args:
        text: The value.
        infinities: Whether ``NaN`` and ``Infinity`` are numbers, as programs write that
            do not look at them.

    Raises:
        ValueError: If it is none, a name stands twice in an object, or values are
            nested too deeply.
    """
    constants = None if infinities else _no_number
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=constants)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err
    if _is_deep(value):
        raise ValueError("it is nested too deeply")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inner = (
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        )
        level = [
            each for some in inner for each in some if isinstance(each, dict | list)
        ]
        if not level:
            return False
    return True


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r:.60} stands twice in one place")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
