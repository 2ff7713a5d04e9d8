"""NumPy arrays in pickles and ``.npy`` files, read without executing anything."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.convert.files.unpickling import PickleError, StandIn
from lm_latent_eval.file_names import regular

_NUMBERS = re.compile(r"b1|f[248]|[iu][1248]")
"""Types that are numbers; others, such as objects, are refused."""
_AXES = 2


def array(found: Any) -> NDArray[Any]:
    """Return an array of numbers as NumPy pickles it, or a number as one of no axis.

    Raises:
        PickleError: If it is something else, or its numbers are missing.
    """
    if isinstance(found, float | int):
        return np.asarray(found)
    try:
        numbers, kind, shape, order = _parts(found)
        size = tuple(shape)
        if len(size) > _AXES or not all(type(n) is int and n >= 0 for n in size):
            raise PickleError("an array has no shape")
        flat = np.frombuffer(_bytes(numbers), _dtype(kind))
        if len(flat) != math.prod(size):
            raise PickleError("numbers of an array are missing: it is damaged")
        return flat.reshape(size, order="F" if order == "F" else "C")
    except (AttributeError, TypeError, ValueError) as err:
        if isinstance(err, PickleError):
            raise
        raise PickleError(f"an array is damaged ({type(err).__name__})") from err


def _parts(found: StandIn) -> tuple[Any, Any, Any, str]:
    """Return bytes, type, shape and order."""
    match found.name.rpartition(".")[2], found.arguments, found.state:
        case "_reconstruct", _, (_, shape, kind, fortran, numbers):
            return numbers, kind, shape, "F" if fortran is True else "C"
        case "_frombuffer", (numbers, kind, shape, order), _:
            return numbers, kind, shape, order
        case "scalar", (kind, numbers), _:
            return numbers, kind, (), "C"
    raise PickleError("it has something else where an array of numbers belongs")


def _bytes(found: Any) -> bytes:
    """Return bytes, which protocols below 3 write as a string of Latin letters."""
    if isinstance(found, StandIn) and found.name == "_codecs.encode":
        return str(found.arguments[0]).encode("latin-1")
    if not isinstance(found, bytes):
        raise PickleError("an array has no numbers")
    return found


def _dtype(found: StandIn) -> np.dtype[Any]:
    code, order = found.arguments[0], found.state[1]
    if not _NUMBERS.fullmatch(code) or order not in ("<", ">", "|", "="):
        raise PickleError("an array is of something else than numbers")
    return np.dtype(f"{order}{code}")


def read_npy(path: Path) -> NDArray[Any]:
    """Read a ``.npy`` file of numbers, no more than it has.

    Raises:
        PickleError: If it is something else, or damaged.
    """
    try:
        found = np.lib.format.open_memmap(regular(path), mode="r")
    except Exception as err:  # a damaged header can raise nearly anything
        raise PickleError(f"{path} is no readable array ({err!r:.200})") from err
    if not _NUMBERS.fullmatch(found.dtype.str[1:]):
        raise PickleError(f"{path} is an array of something else than numbers")
    return np.asarray(found)
