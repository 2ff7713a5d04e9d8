"""Work that is done again promises every draw, and numbers but for rounding.

Computed in batches of another shape, float64 sums are rounded otherwise. A draw that
differed would move a weight by far more.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import pytest

ROUNDING = 1e-9
"""Of a number itself, or in nats where it is small."""


def agree(one: Any, other: Any) -> bool:
    """Compare records or lists of them: floats to ``ROUNDING``, all else equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        close = pytest.approx(other, rel=ROUNDING, abs=ROUNDING, nan_ok=True)
        return bool(one == close)
    if is_dataclass(one):
        return agree(asdict(one), asdict(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(
            agree(one[name], other[name]) for name in one
        )
    if isinstance(one, list | tuple | array):
        return len(one) == len(other) and all(map(agree, one, other))
    return bool(one == other)
