"""Scores parts of texts: a causal network's tokens, or words by any scorer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from lm_latent_eval.estimators import Bound
from lm_latent_eval.networks.causal import TokenScores
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.spans import Spans, words
from lm_latent_eval.scoring.texts import Query


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
