r"""Productivity: the probability that the next event is new.

    P-hat = N_1 / N

N events were drawn; N_m of their types (distinct events) occurred exactly m times, N_1
of them once (hapax legomena). A sample lies in the zone of a large number of rare
events (LNRE) as long as P-hat is above 0.

E[P-hat] is the expected probability of what N - 1 events leave unseen, exactly. For N
events that is too high by the sum over types of p^2 (1 - p)^(N-1), at most 1/N.

Source: Good (1953); Baayen (2001); LeBrun, Sordoni and O'Donnell (2022), appendix A.2
(equations 3 and 4, figure 13); Esty (1983) for the standard error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Self

from lm_latent_eval.estimators.checks import checked_count


def productivity_stderr(num_events: int, num_once: int, num_twice: int) -> float:
    r"""Return the standard error of the potential productivity.

    .. math:: \mathrm{se}^2 = \frac{1}{N^2}
        \Bigl(N_1 \Bigl(1 - \frac{N_1}{N}\Bigr) + 2 N_2\Bigr)

    Of P-hat as an estimate of the probability that *this* sample left unseen, itself a
    random number; asymptotic. It is 0 where all events differ, which is no certainty.

    Args:
        num_events: N, at least 1.
        num_once: :math:`N_1`, types that occurred once.
        num_twice: :math:`N_2`, types that occurred twice.

    Raises:
        ValueError: If there is no event, or more are counted than there are.

    Example:
        >>> round(productivity_stderr(11, num_once=2, num_twice=2), 4)
        0.2158

    Reference:
        Esty (1983).
    """
    checked_count(num_events, "num_events")
    if min(num_once, num_twice) < 0 or num_once + 2 * num_twice > num_events:
        raise ValueError(
            f"{num_once} types once and {num_twice} twice are not among "
            f"{num_events} events"
        )
    share = num_once / num_events
    return math.sqrt(num_once * (1 - share) + 2 * num_twice) / num_events


@dataclass(frozen=True)
class ProductivityCurve:
    """Potential productivity as a sample grows.

    Example:
        >>> curve = ProductivityCurve.of("abracadabra")
        >>> curve.sample_sizes, curve.num_types, curve.num_hapax
        ((1, 2, 5, 10, 11), (1, 2, 4, 5, 5), (1, 2, 3, 2, 2))
        >>> curve.productivity[:4]
        (1.0, 1.0, 0.6, 0.2)
    """

    sample_sizes: tuple[int, ...]
    """Sizes N of the samples, each the first N events."""
    productivity: tuple[float, ...]
    """Productivity N_1 / N."""
    num_types: tuple[int, ...]
    """Distinct events."""
    num_hapax: tuple[int, ...]
    """Number N_1 of events that occurred once."""
    stderr: tuple[float, ...]
    """Standard error of each productivity; values of one sample are dependent."""

    @classmethod
    def of(cls, events: Iterable[Hashable]) -> Self:
        """Read events one by one; note the productivity at 1, 2, 5, 10, 20, ...

        And at the end. One pass; memory grows with the number of types, which in the
        LNRE zone is a sizeable share of the number of events.

        Args:
            events: n-grams (tuples), words, sentences, ... in the order drawn.

        Raises:
            ValueError: If there is no event.
        """
        noted = [
            (size, types, once, productivity_stderr(size, once, twice))
            for size, types, once, twice in _growth(events)
        ]
        if not noted:
            raise ValueError("no events: nothing can be said of the next one")
        sizes, types, once, stderr = zip(*noted, strict=True)
        shares = tuple(n / size for n, size in zip(once, sizes, strict=True))
        return cls(sizes, shares, types, once, stderr)


def _growth(events: Iterable[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Yield N, its types, and those that occurred once and twice, at each size."""
    sizes = _round_numbers()
    times: Counter[Hashable] = Counter()
    types: Counter[int] = Counter()
    size, next_size = 0, next(sizes)
    for size, event in enumerate(events, 1):
        types[times[event]] -= 1
        times[event] += 1
        types[times[event]] += 1
        if size == next_size:
            yield size, len(times), types[1], types[2]
            next_size, noted = next(sizes), size
    if size and noted < size:
        yield size, len(times), types[1], types[2]


def _round_numbers() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50, ..."""
    return (first * 10**zeros for zeros in count() for first in (1, 2, 5))
