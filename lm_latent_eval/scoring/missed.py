"""Error for texts of which no latent was found, raised after all others are scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.texts import Query, naming

NAMED = 10
"""Texts without a number that an error names."""


class MissedTextsError(MissedSupportError):
    """Error of texts that have no number; all others were answered before it."""

    def __init__(self, names: Mapping[int, str], why: str, of: int) -> None:
        """Name the texts.

        Args:
            names: Index of each query without an answer -> its name.
            why: What was wrong with one of them; its name comes first.
            of: How many were asked.
        """
        self.names = dict(names)
        self.why = why
        self.of = of
        self.answers: list[Answer] = []
        """Those of the other texts, where whoever asked has collected them."""
        others = [n for n in names.values() if not why.startswith(f"{n} ")]
        more = f", and {len(others) - NAMED} more" if len(others) > NAMED else ""
        likewise = f". Likewise {', '.join(others[:NAMED])}{more}" if others else ""
        scored = of - len(names)
        super().__init__(
            f"{why}{likewise}"
            + (f" ({scored} of {of} texts are scored)" if scored else "")
        )

    def leaving(self, answers: Mapping[int, Answer], of: int) -> Self:
        """Return the error with the answers of the other texts, by their places.

        Args:
            answers: Those that were found before are among them.
            of: How many texts there are.
        """
        err = type(self)(self.names, self.why, of)
        err.answers = [answers[n] for n in sorted(answers)]
        return err

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the names, and without the answers."""
        return type(self), (self.names, self.why, self.of)


class Missed:
    """Collects the texts of a run that have no number."""

    def __init__(self, queries: Sequence[Query]) -> None:
        """Start with none.

        Args:
            queries: All that are asked.
        """
        self._of = len(queries)
        self._errors: dict[int, MissedSupportError] = {}
        self._names: dict[int, str] = {}

    @contextmanager
    def aside(self, query: Query) -> Iterator[None]:
        """Keep for the end that a query has no support; name it in other errors."""
        try:
            with naming(query):
                yield
        except MissedSupportError as err:
            self._errors.setdefault(query.index, err)
            self._names[query.index] = query.name

    def tell(self) -> None:
        """Say which there were.

        Raises:
            MissedTextsError: If there was one.
        """
        for err in self._errors.values():
            raise MissedTextsError(self._names, str(err), self._of) from err
