"""Queries, and their texts as words within a context.

A model of documents gets a query as one text. A model of sentences gets its sentences,
whose probabilities are multiplied: those that lie in the context altogether cancel, so
a continuation begins in the last sentence of its context.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from lm_latent_eval.text.encoder import Encoder, Reading
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import LITERAL_UNKNOWN, encodable


@dataclass(frozen=True)
class Query:
    """One question: how probable is a text, by itself or after a context?"""

    index: int
    name: str
    """Key of its random numbers: a task and a document, say."""
    text: str
    context: str = ""

    def __post_init__(self) -> None:
        with naming(self):
            for string in (self.context, self.text):
                encodable(string)


@dataclass(frozen=True)
class Text:
    """A query, or one sentence of it, as words."""

    query: Query
    sentence: int
    """Number of the sentence in the query, from 0."""
    context: list[int]
    """Words that are given."""
    context_costs: list[float]
    """Costs of the given words as unknown ones, nats."""
    words: list[int]
    """Words to be predicted after them."""
    word_costs: list[float]
    """Costs of the predicted words as unknown ones, nats."""
    log_spacing: float
    """Cost of the white space before them, nats."""
    unspelled: int
    """Unknown words among them that are charged as a class."""
    respaced: int
    """Gaps of unusual white space before them that are not charged."""
    left_out: int = 0
    """Unknown words among them that nothing is charged for: they are not scored."""
    condition: tuple[int, ...] | None = None
    """Words that a conditional model is given; None: the model is not conditional."""

    @property
    def num_words(self) -> int:
        return len(self.context) + len(self.words)

    @property
    def name(self) -> str:
        """Key of its random numbers."""
        query = self.query.name
        return f"{query}/sentence {self.sentence}" if self.sentence else query

    @property
    def given(self) -> Hashable:
        """Key of texts that share their context's latents.

        Nothing is drawn for an empty context: all texts share it.
        """
        name = self.name if self.context else ""
        return name, tuple(self.context), tuple(self.context_costs), self.condition


@dataclass(frozen=True)
class Cutter:
    """Encodes queries as texts of words."""

    reader: Encoder
    sentence_starts: Callable[[str], list[int]] | None = None
    """Function to where sentences begin; None: documents are not cut."""
    ends: bool = True
    """Whether the model says where a text ends."""
    conditional_on: str | None = None
    """``conditional_on`` of a conditional model; None of other models."""

    def whole(self, query: Query) -> list[Text]:
        """Return a document's texts, each with its end.

        Raises:
            ValueError: If spellings are charged and one of them is lost, or a word is
                a mark of the model's, or the model is of texts given others.
        """
        if self.conditional_on is not None:
            with naming(query):
                raise ValueError(
                    "the model gives a text a probability given another one: put "
                    f"{self.conditional_on} before it, as its context"
                )
        with naming(query):
            reading = self.reader(query.text)
        # Without words a document still ends, but has no sentence that could.
        ended = self.ends and (bool(reading.ids) or self.sentence_starts is None)
        spans = self._sentences(query.text, reading)
        return [
            self._text(
                query, n, reading, (start, start, end), ended, n == len(spans) - 1
            )
            for n, (start, end) in enumerate(spans)
        ]

    def continuation(self, query: Query) -> list[Text]:
        """Return the texts of a continuation, the first with its context.

        A word across the border belongs to the continuation; its last sentence, which
        may go on, has no end.

        Raises:
            ValueError: If spellings are charged and one of the continuation's is lost.
        """
        if self.conditional_on is not None:
            return self._given(query)
        text = query.context + query.text
        with naming(query):
            reading = self.reader(text)
        border = sum(end <= len(query.context) for end in reading.ends)
        spans = self._sentences(text, reading)
        last = len(spans) - 1
        return [
            self._text(
                query,
                n,
                reading,
                (start, max(start, border), end),
                self.ends and n < last,
                False,
            )
            for n, (start, end) in enumerate(spans)
            if end >= border
        ]

    def _given(self, query: Query) -> list[Text]:
        """Return a text given its context, each of which is read by itself.

        What a task puts between the two is no part of the text.
        """
        with naming(query):
            condition = self.reader(query.context)
            if not condition.ids:
                raise ValueError(
                    f"nothing is given: put {self.conditional_on} before the text, as "
                    "its context"
                )
            reading = self.reader(query.text.lstrip())
        span = (0, 0, len(reading.ids))
        text = self._text(query, 0, reading, span, False, False)
        return [replace(text, condition=tuple(condition.ids))]

    def _sentences(self, text: str, reading: Reading) -> list[tuple[int, int]]:
        """Return the words at which each sentence begins and ends."""
        borders = [0, len(reading.ids)]
        if self.sentence_starts is not None:
            # A word belongs to the sentence that it ends in.
            inner = (bisect_right(reading.ends, s) for s in self.sentence_starts(text))
            borders = sorted({*borders, *inner})
        if len(borders) == 1:  # no words
            borders = [0, 0]
        return list(pairwise(borders))

    def _text(
        self,
        query: Query,
        sentence: int,
        reading: Reading,
        span: tuple[int, int, int],
        ended: bool,
        closed: bool,
    ) -> Text:
        """Return the words of a span: its start, the end of its context, its end.

        Nothing follows ``closed`` texts: the last white space is theirs.
        """
        start, border, end = span
        after = end + int(closed)
        lost = sum(reading.unspelled[border:end])
        if lost and self.reader.policy is UnknownWords.SPELLED:
            with naming(query):
                raise ValueError(
                    f"the text has {lost} literal {LITERAL_UNKNOWN}, whose spelling is "
                    "lost: it has no probability as a string, and no bits per byte. "
                    "Score its words with unk=penalized or unk=closed"
                )
        return Text(
            query,
            sentence,
            reading.ids[start:border],
            reading.log_unknown[start:border],
            reading.ids[border:end] + [self.reader.end] * ended,
            reading.log_unknown[border:end] + [0.0] * ended,
            sum(reading.log_spacing[border:after]),
            lost,
            sum(reading.respaced[border:after]),
            sum(reading.left_out[border:after]),
        )


@contextmanager
def naming(query: Query) -> Iterator[None]:
    """Add to a ``ValueError`` the name and text of the query that it is about."""
    try:
        yield
    except ValueError as err:
        raise named(query, err) from err


def named(query: Query, err: ValueError) -> ValueError:
    """Return an error that begins with the name and text of the query it is about."""
    text = " | ".join(filter(None, (query.context, query.text)))
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    return type(err)(f"{query.name} ({shown!r}): {err}")
