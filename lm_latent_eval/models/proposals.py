"""What models check when they are asked for a proposal."""

from __future__ import annotations

import math
from collections.abc import Sequence


def chosen(name: str | None, known: Sequence[str]) -> str:
    """Return the name of a proposal; None is the first of those that a model has.

    Raises:
        ValueError: If there is none of that name.
    """
    if name is None:
        return known[0]
    if name not in known:
        raise ValueError(
            f"proposal={name!r}: this checkpoint has {', '.join(sorted(known))}"
        )
    return name


def check_temperature(temperature: float) -> None:
    """Refuse what cannot divide scores.

    Raises:
        ValueError: If it is not positive and finite.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(
            f"temperature={temperature}: expected a positive number; small values "
            "concentrate the proposal, large ones flatten it"
        )
