"""Spans of a text with a model's -log p of each, and the spans of two models aligned.

Parts are a causal network's tokens, or words as any scorer scores them. Models cut
texts into other parts: where both end at the same byte, what they have taken so far
compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring.texts import Query

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lm_latent_eval.networks.causal import TokenScores
    from lm_latent_eval.scoring.interface import TextScorer

NO_END = "pieces of its own tokenizer; no end of a text is charged"
"""Unit of causal networks of transformers."""


@dataclass(frozen=True)
class Spans:
    """The parts of a text, in its order and without gaps."""

    ends: Sequence[int]
    """Bytes of the text up to the end of each."""
    nats: Sequence[float]
    """-log p of each, given all before it, nats."""
    draws_stderr: Sequence[float]
    """Its error by draws of latents, nats; that of a difference of two estimates."""


@dataclass(frozen=True)
class Aligned:
    """A part of a text that begins and ends where parts of both models do."""

    start: int
    end: int
    """Bytes."""
    nats: float
    """That A takes more than B."""
    draws_stderr: float


def align(a: Spans, b: Spans) -> list[Aligned]:
    """Return the smallest spans at whose ends spans of both models end.

    Example:
        >>> a = Spans([2, 5], [1.0, 2.0], [0.0, 0.0])
        >>> b = Spans([3, 5], [0.5, 1.0], [0.0, 0.3])
        >>> align(a, b)
        [Aligned(start=0, end=5, nats=1.5, draws_stderr=0.3)]
    """
    totals = [_totals(each) for each in (a, b)]
    shared = [0, *sorted({*totals[0]} & {*totals[1]} - {0})]
    found = []
    for start, end in pairwise(shared):
        of_a, of_b = (
            tuple(x - y for x, y in zip(t[end], t[start], strict=True)) for t in totals
        )
        error = math.sqrt(max(of_a[1] + of_b[1], 0.0))
        found.append(Aligned(start, end, of_a[0] - of_b[0], error))
    return found


def _totals(spans: Spans) -> dict[int, tuple[float, float]]:
    """Return the cumulative -log p at each end, and its squared error."""
    nats = accumulate(spans.nats, initial=0.0)
    squares = accumulate((e * e for e in spans.draws_stderr), initial=0.0)
    return dict(zip([0, *spans.ends], zip(nats, squares, strict=True), strict=True))


def words(text: str) -> Iterator[tuple[int, int]]:
    """Yield where words are, with the white space before each; characters.

    What follows the last one belongs to it.
    """
    within = enumerate(pairwise(text.rstrip()), start=1)
    ends = [n for n, (c, d) in within if not c.isspace() and d.isspace()]
    yield from pairwise([0, *ends, len(text)])


def of_tokens(
    text: str, tokenizer: PreTrainedTokenizerBase, scores: TokenScores
) -> Spans:
    """Return the tokens of a causal network as parts; those within a character join."""
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    sizes = [0, *accumulate(len(c.encode("utf-8", "replace")) for c in text)]
    taken: dict[int, float] = {}
    for (_, end), log_p in zip(coded["offset_mapping"], scores.log_p, strict=True):
        taken[sizes[end]] = taken.get(sizes[end], 0.0) - log_p
    ends = sorted(taken)
    return Spans(ends, [taken[end] for end in ends], [0.0] * len(ends))


def of_words(scorer: TextScorer, texts: Sequence[str]) -> list[Spans]:
    """Score each word of texts after what stands before it.

    It takes a query a word, each as long as what is read so far.
    """
    places = [
        (n, start, end) for n, text in enumerate(texts) for start, end in words(text)
    ]
    queries = [
        Query(place, f"text/{n}", texts[n][start:end], texts[n][:start])
        for place, (n, start, end) in enumerate(places)
    ]
    answers = {answer.index: answer for answer in scorer.score_continuations(queries)}
    parts: list[list[tuple[int, float, float]]] = [[] for _ in texts]
    for place, (n, _, end) in enumerate(places):
        estimate = answers[place].estimate
        error = 0.0 if estimate.bound is Bound.EXACT else estimate.draws_stderr
        size = len(texts[n][:end].encode("utf-8", "replace"))
        parts[n].append((size, -estimate.log_evidence, error))
    return [Spans(*zip(*some, strict=True)) for some in parts]
