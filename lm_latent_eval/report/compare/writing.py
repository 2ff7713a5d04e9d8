"""Differences of rates, written with their errors."""

from __future__ import annotations

import math


def with_error(nats: float, stderr: float, sign: str = "") -> str:
    """Write bits with two digits of their error."""
    error = bits(stderr)
    places = 4
    if 0 < error < math.inf:
        places = max(1 - math.floor(math.log10(error)), 0)
    return f"{bits(nats):{sign}.{places}f} ± {error:.{places}f}"


def bits(nats: float) -> float:
    """Return nats in bits."""
    return nats / math.log(2)
