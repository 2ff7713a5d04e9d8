"""Texts as queries, what a scorer estimates of them, and what it asks its network."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.texts import Query


def queries(*texts: str, context: str = "") -> list[Query]:
    return [Query(n, f"text/{n}", text, context) for n, text in enumerate(texts)]


def answers(scorer: Any, *texts: str, context: str = "") -> list[Answer]:
    """Answers in the order of their texts, which follow a context or nothing."""
    score = scorer.score_continuations if context else scorer.score_texts
    found = score(queries(*texts, context=context))
    return sorted(found, key=lambda answer: answer.index)


def estimate(scorer: Any, text: str, context: str = "") -> Estimate:
    [answer] = answers(scorer, text, context=context)
    return answer.estimate


@contextmanager
def watched(model: Any) -> Iterator[list[tuple[int, ...]]]:
    """Collect the shapes of what a network reads."""
    shapes: list[tuple[int, ...]] = []
    forward = model.forward

    @functools.wraps(forward)
    def watching(input_ids, **more):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **more)

    model.forward = watching
    try:
        yield shapes
    finally:
        model.forward = forward
