"""Parsing and type checks of user arguments (Python, ``--model_args``, command line).

Imports nothing heavy, so ``--help`` is quick.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

TRUTHS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}
"""What stands for true and false, in lower case."""


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


def whole(name: str, value: Any, least: int) -> int:
    """Read a whole number that is not too small.

    Raises:
        ValueError: If it is none, or is.
    """
    try:
        number = integer(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(
            f"{name}={value!r}: expected a whole number of at least {least}"
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
    """Read true or false: the one place that says which words mean which.

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
    """Read one of several names.

    Raises:
        ValueError: If it is none of them; near ones are suggested.
    """
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
