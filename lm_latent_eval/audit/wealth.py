r"""E-processes against a total of at most 1: betting on scores of drawn options.

Options y of a set are drawn without replacement, y_t from r_t over those unseen. With
S_t the total of those seen,

.. math:: X_t = S_t + p(y_t) / r_t(y_t)

has the mean :math:`\sum_y p(y)` whatever was seen before, and is never negative: it
is p/q for the mixture q of what is known and a floor r_t, with the known part taken for
its mean. So if p totals at most 1 in every set, the wealth

.. math:: W_T = \prod_{t \le T} (1 + \lambda_t (X_t - 1)), \qquad \lambda_t \in [0, 1]

with :math:`\lambda_t` chosen from the past alone is a non-negative supermartingale that
begins at 1, and exceeds :math:`1/\alpha` at any time with probability at most
:math:`\alpha` (Ville). :math:`\lambda_t` is the mean of a grid, each weighted by what
betting it would have earned, so that :math:`W_T` is the mean of the grid's wealths:
within a factor of the grid's size of the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BETS = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)


class Wealth:
    """The wealth of a bettor against totals of at most 1.

    Example:
        >>> wealth = Wealth()
        >>> for _ in range(100):
        ...     wealth.bet(1.05)  # every draw says that the total is 1.05
        >>> wealth.log > 3
        True
    """

    def __init__(self) -> None:
        """Begin with 1."""
        self._logs = [0.0] * len(BETS)
        self.most = 0.0
        """The logarithm of the most it was."""
        self.draws, self._sum = 0, 0.0

    @property
    def log(self) -> float:
        """Its logarithm, now."""
        most = max(self._logs)
        total = math.fsum(math.exp(log - most) for log in self._logs)
        return most + math.log(total / len(BETS))

    def bet(self, ratio: float) -> None:
        """Take in one X, of mean at most 1 under the claim."""
        ratio = min(ratio, 1e300)
        for n, bet in enumerate(BETS):
            kept = 1 + bet * (ratio - 1)
            self._logs[n] += math.log(kept) if kept > 0 else -math.inf
        self.draws, self._sum = self.draws + 1, self._sum + ratio
        self.most = max(self.most, self.log)

    @property
    def mean(self) -> float:
        """The mean X: an unbiased estimate of the average total."""
        return self._sum / self.draws if self.draws else math.nan

    def exceeds(self, level: float) -> bool:
        """Whether it ever was above 1 / level."""
        return self.most > -math.log(level)


class DrawnSet:
    """A set of options that are too many to ask for all of them.

    Args:
        weights: What is drawn from, shape (N,), positive, up to a constant: the nearer
            to p, the sooner a total above 1 is found.
        floor: Share of a uniform distribution that is mixed in.
    """

    def __init__(
        self, weights: Sequence[float] | NDArray[np.float64], floor: float = 0.1
    ) -> None:
        """Mix the floor in."""
        rates = np.asarray(weights, dtype=float)
        rates = (1 - floor) * rates / rates.sum() + floor / len(rates)
        self._rates, self._ends = rates, rates.cumsum()
        self._seen: set[int] = set()
        self._seen_rate = 0.0
        self.total = 0.0
        """Of p over what was seen."""

    def draw(self, number: int, rng: np.random.Generator) -> list[tuple[int, float]]:
        """Draw unseen options, each with the rate r at which it was drawn.

        The answers to them may all be waited for: none decides which is drawn.
        """
        drawn: list[tuple[int, float]] = []
        while len(drawn) < number and len(self._seen) < len(self._rates):
            left = 1 - self._seen_rate
            if left < 1e-9:
                break
            place = self._unseen(rng)
            drawn.append((place, float(self._rates[place]) / left))
            self._seen.add(place)
            self._seen_rate += float(self._rates[place])
        return drawn

    def _unseen(self, rng: np.random.Generator) -> int:
        while True:
            found = np.searchsorted(self._ends, rng.random() * self._ends[-1], "right")
            place = min(int(found), len(self._rates) - 1)
            if place not in self._seen:
                return place

    def ratio(self, p: float, rate: float) -> float:
        """Take in the p of an option, in the order drawn; return X."""
        ratio = self.total + p / rate
        self.total += p
        return ratio
