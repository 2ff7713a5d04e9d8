"""A scorer as lm-eval sees it: three kinds of requests, counted against a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

Pair = tuple[str, str]
"""A context and its continuation."""
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a scorer answers to one request."""

    log_p: float
    """Nats; NaN of a request that was refused."""
    is_greedy: bool = False
    stderr: float | None = None
    """The Monte Carlo error that it prints, nats; None where it prints none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """``bytes`` and ``words``, where the answer says how many it is of."""
    refused: str = ""
    """The error in the place of an answer."""

    @property
    def p(self) -> float:
        """The probability; 0 of what was refused."""
        if math.isnan(self.log_p):
            return 0.0
        return math.exp(self.log_p) if self.log_p < 700 else math.inf

    @property
    def error(self) -> float:
        """The Monte Carlo error, nats; 0 where none is printed."""
        return self.stderr or 0.0


class Backend(Protocol):
    """A model of lm-eval, ours or not."""

    def score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Answer ``loglikelihood`` requests, in one call."""

    def score_texts(self, texts: Sequence[str]) -> list[Reply]:
        """Answer ``loglikelihood_rolling`` requests, in one call."""

    def write(
        self, contexts: Sequence[str], *, tokens: int, sample: bool, first: int = 0
    ) -> list[str]:
        """Answer ``generate_until`` requests, in one call.

        Args:
            contexts: What to continue.
            tokens: The most to write.
            sample: By chance at temperature 1, or greedily.
            first: How many samples were asked for before: these are others.
        """

    def reopened(self, **changes: str) -> Backend:
        """Open the model anew with some arguments changed."""

    def cached(self) -> AbstractContextManager[Backend]:
        """Put a new cache of lm-eval's before the model."""


class OverBudgetError(ValueError):
    """More requests than an audit said that it would make."""


class Requester:
    """Asks a backend, counts, and takes errors for refusals of single requests."""

    def __init__(self, backend: Backend, most: float = math.inf) -> None:
        """Take who answers.

        Args:
            backend: The model.
            most: Requests that may be made in all.
        """
        self.backend, self.most, self.requests = backend, most, 0

    def score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Return log p of continuations after their contexts."""
        return self._answers(self.backend.score, pairs)

    def score_each(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Return the same, each in a call of its own."""
        return [reply for pair in pairs for reply in self.score([pair])]

    def score_texts(self, texts: Sequence[str]) -> list[Reply]:
        """Return log p of whole texts."""
        return self._answers(self.backend.score_texts, texts)

    def write(
        self, context: str, number: int, *, tokens: int, sample: bool, first: int = 0
    ) -> list[str] | None:
        """Return continuations that a backend writes; None if it writes none."""
        self._count(number)
        try:
            return self.backend.write(
                [context] * number, tokens=tokens, sample=sample, first=first
            )
        except Exception:  # of code that is not ours
            return None

    def over(self, backend: Backend) -> Requester:
        """Ask another backend on the same account."""
        other = Requester(backend, self.most)
        other._count = self._count  # type: ignore[method-assign]
        return other

    def _count(self, number: int) -> None:
        self.requests += number
        if self.requests > self.most:
            raise OverBudgetError(
                f"the audit would make more than the {self.most:.0f} requests that it "
                "announced: the backend refuses so many that asking them one by one "
                "again is too much. Give --data with texts that it can score"
            )

    def _answers(
        self, ask: Callable[[Sequence[Asked]], list[Reply]], asked: Sequence[Asked]
    ) -> list[Reply]:
        """Ask all together; where that ends in an error, one by one."""
        if not asked:
            return []
        self._count(len(asked))
        try:
            return ask(asked)
        except Exception as err:  # of code that is not ours
            if len(asked) == 1:
                said = " ".join(f"{type(err).__name__}: {err}".split())[:200]
                return [Reply(math.nan, refused=said)]
        return [reply for one in asked for reply in self._answers(ask, [one])]


def shown(pair: Pair) -> dict[str, str]:
    """Return a request as a witness has it."""
    return {"context": pair[0], "continuation": pair[1]}
