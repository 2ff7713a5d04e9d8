"""Typed reading of JSON files from other programs.

A string where a list is expected would be read letter by letter.
"""

from __future__ import annotations

from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

from lm_latent_eval.text.files import read_text
from lm_latent_eval.values import parse

T = TypeVar("T")

_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


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
        raise TypeError(f"{what}: expected {_NAMES[kind]}, not {shown(value)}")
    return value


def strings(value: Any, what: str) -> list[str]:
    """Return a list of strings.

    Raises:
        TypeError: If it is not one.
    """
    return [checked(each, str, what) for each in checked(value, list, what)]
