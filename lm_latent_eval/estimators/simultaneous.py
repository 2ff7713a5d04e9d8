"""Many comparisons at once: which of them hold together, and what cannot be told apart.

Source: Holm (1979); groups are those of Piepho (2004), the largest sets of which no two
were told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """Return the level that each test is held to; 0 of those that are not reached.

    The smallest of m p-values must be below level / m, the next below level / (m - 1),
    and so on until one is not: with probability at least 1 - level no true null is
    refused, whatever the tests have to do with each other.

    Example:
        >>> [round(each, 4) for each in holm_levels([0.04, 0.001, 0.03], 0.05)]
        [0.0, 0.0167, 0.0]
    """
    levels = [0.0] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, place in enumerate(order):
        allowed = level / (len(p_values) - rank)
        if not p_values[place] < allowed:
            break
        levels[place] = allowed
    return levels


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values that hold together.

    Example:
        >>> holm_adjusted([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    adjusted, most = [1.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, place in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = most
    return adjusted


def groups(
    names: Sequence[str], apart: Collection[frozenset[str]]
) -> list[tuple[str, ...]]:
    """Return the largest sets of which no two were told apart, in the order of names.

    Args:
        names: All of them, at most 26.
        apart: Pairs that were told apart.

    Example:
        >>> groups("ABC", [frozenset("AC")])
        [('A', 'B'), ('B', 'C')]
    """
    near = {
        one: {each for each in names if each != one and {one, each} not in apart}
        for one in names
    }
    found: list[set[str]] = []

    def grow(chosen: set[str], open_: set[str], closed: set[str]) -> None:
        if not open_ and not closed:
            found.append(chosen)
            return
        pivot = max(open_ | closed, key=lambda each: len(near[each] & open_))
        for each in sorted(open_ - near[pivot]):
            grow(chosen | {each}, open_ & near[each], closed & near[each])
            open_ = open_ - {each}
            closed = closed | {each}

    grow(set(), {*names}, set())
    ordered = (tuple(name for name in names if name in some) for some in found)
    return sorted(ordered, key=lambda some: [names.index(name) for name in some])
