"""Answers to queries, and the collection of queries that have none.

A text of which no latent was found has no number. It is put aside, and an error names
it once all others are scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.scoring.texts import Query, Text, naming
from lm_latent_eval.text.files import digest


@dataclass(frozen=True)
class Answer:
    """An estimate with facts about its text and its draws."""

    index: int
    """Number of the query; of a task, number of the document."""
    estimate: Estimate
    stream: str = ""
    """Name of the random numbers: equal streams mean shared draws."""
    unspelled: int = 0
    """Unknown words charged as a class: more was scored than this string."""
    respaced: int = 0
    """Gaps of unusual white space that were not charged."""
    left_out: int = 0
    """Unknown words that were not scored at all: rates per word leave them out, too."""
    sentences: int = 1
    """Sentences whose probabilities were multiplied."""
    is_greedy: bool | None = None
    """Whether a continuation is the argmax of the estimated next-token marginals; None
    of a whole text."""
    canonical: float | None = None
    """Log p of the tokenizer's own segmentation of a whole text, nats, where others are
    summed over."""

    # The caller adds the rest: scorers leave it out.
    text: str = ""
    """Digest of the scored string, its context included."""
    words: int = 0
    """Words between white space, at least 1."""
    bytes: int = 0
    option: int = 0
    """Number of the option among those of a question."""
    accuracy: float | None = None
    """Accuracy of the whole question by its task: the mean over options that tie."""
    tied: bool | None = None
    """Whether rounding alone tells it from the best of its question's other options,
    see ``estimators.choices``; None of a whole text."""

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return self.estimate.num_tokens

    @classmethod
    def exact(
        cls, log_likelihood: float, text: str, context: str | None = None
    ) -> Self:
        """Return the answer of an exact log-likelihood, nats."""
        estimate = Estimate.exact(
            float(log_likelihood), num_tokens=max(len(text.split()), 1)
        )
        return cls(0, estimate).about(text, context)

    @classmethod
    def of(
        cls, text: Text, estimate: Estimate, *, is_greedy: bool | None = None
    ) -> Self:
        """Return the answer of a query, or of one sentence of it."""
        return cls(
            text.query.index,
            estimate,
            unspelled=text.unspelled,
            respaced=text.respaced,
            left_out=text.left_out,
            is_greedy=is_greedy,
        )

    @classmethod
    def product(cls, parts: Sequence[Self]) -> Self:
        """Return the answer of a text from those of its sentences, in their order."""
        if len(parts) == 1:
            return parts[0]
        greedy = [part.is_greedy for part in parts]
        return replace(
            parts[0],
            estimate=Estimate.product([part.estimate for part in parts]),
            is_greedy=None if None in greedy else all(greedy),
            unspelled=sum(part.unspelled for part in parts),
            respaced=sum(part.respaced for part in parts),
            left_out=sum(part.left_out for part in parts),
            sentences=len(parts),
        )

    def about(self, text: str, context: str | None = None) -> Self:
        """Add digest, words and bytes of the scored string.

        Args:
            text: The string.
            context: The context that it continues; None: it is a whole text.
        """
        return replace(
            self,
            text=digest((context or "") + text),
            words=max(len(text.split()), 1),
            bytes=len(text.encode("utf-8", "replace")),
            is_greedy=None if context is None else bool(self.is_greedy),
        )

    def without_weights(self) -> Self:
        return replace(self, estimate=replace(self.estimate, log_weights=()))


@contextmanager
def noting_progress(answers: Sized, of: Sized, what: str) -> Iterator[None]:
    """Add the number of answers so far to the message of an interruption."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(f"interrupted: {len(answers)} of {len(of)} {what}")
        raise


NAMED = 10
"""Texts without a number that an error names."""


class MissedTextsError(MissedSupportError):
    """Error of texts without a number, raised after all others were answered."""

    def __init__(self, names: Mapping[int, str], why: str, of: int) -> None:
        """Name the texts.

        Args:
            names: Index of each query without an answer -> its name.
            why: The error of one of them; its name comes first.
            of: Number of queries.
        """
        self.names = dict(names)
        self.why = why
        self.of = of
        self.answers: list[Answer] = []
        """Answers of the other texts, if the caller has collected them."""
        others = [n for n in names.values() if not why.startswith(f"{n} ")]
        more = f", and {len(others) - NAMED} more" if len(others) > NAMED else ""
        likewise = f". Likewise {', '.join(others[:NAMED])}{more}" if others else ""
        scored = of - len(names)
        super().__init__(
            f"{why}{likewise}"
            + (f" ({scored} of {of} texts are scored)" if scored else "")
        )

    def leaving(self, answers: Mapping[int, Answer], of: int) -> Self:
        """Return the error with the answers of the other texts, of ``of`` texts."""
        err = type(self)(self.names, self.why, of)
        err.answers = [answers[n] for n in sorted(answers)]
        return err

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the answers."""
        return type(self), (self.names, self.why, self.of)


class Missed:
    """Collects the texts of a run that have no number."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._of = len(queries)
        self._errors: dict[int, MissedSupportError] = {}
        self._names: dict[int, str] = {}

    @contextmanager
    def aside(self, query: Query) -> Iterator[None]:
        """Collect a query's missed support; add the query's name to other errors."""
        try:
            with naming(query):
                yield
        except MissedSupportError as err:
            self._errors.setdefault(query.index, err)
            self._names[query.index] = query.name

    def tell(self) -> None:
        """Raise the error of all collected texts.

        Raises:
            MissedTextsError: If there is one.
        """
        for err in self._errors.values():
            raise MissedTextsError(self._names, str(err), self._of) from err
