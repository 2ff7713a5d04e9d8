"""Word lists, and random choices that come out the same on every Python.

Only ``random.Random.random`` is promised to keep its sequence between versions, so
every choice below is made of it and of nothing else.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list written as a text."""
    return tuple(text.split())


class Dice:
    """A stream of reproducible choices, named by a string."""

    def __init__(self, name: str) -> None:
        """Start the stream called ``name``; equal names give equal streams."""
        self._random = random.Random(name)

    def chance(self, probability: float) -> bool:
        """Return true with the given probability."""
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, each equally likely."""
        if not options:
            raise ValueError("nothing to pick from: options is empty")
        return options[int(self._random.random() * len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """Return one option with probability proportional to its weight."""
        totals = list(accumulate(weights))
        if len(options) != len(totals) or not totals or totals[-1] <= 0:
            raise ValueError(
                f"need one weight an option and a positive sum; got {len(options)} "
                f"options and weights {list(weights)}"
            )
        mark = self._random.random() * totals[-1]
        return next(x for x, total in zip(options, totals, strict=True) if mark < total)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Return the items in a random order (Fisher and Yates)."""
        deck = list(items)
        for last in range(len(deck) - 1, 0, -1):
            other = self.between(0, last)
            deck[last], deck[other] = deck[other], deck[last]
        return deck
