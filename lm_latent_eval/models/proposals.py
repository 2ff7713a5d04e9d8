"""What models check when they are asked for a proposal."""

from __future__ import annotations

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


TEMPERATURES = (0.001, 1000.0)
"""The lowest and the highest. Lower ones would let the rounding of scores decide, which
they divide; at higher ones all choices are as good as equal."""


def check_temperature(temperature: float) -> None:
    """Refuse what cannot divide scores.

    Raises:
        ValueError: If it is not between the lowest and the highest.
    """
    lowest, highest = TEMPERATURES
    if not lowest <= temperature <= highest:
        raise ValueError(
            f"temperature={temperature}: expected a positive number from {lowest:g} "
            f"to {highest:g}; low ones concentrate the proposal, high ones flatten it"
        )
