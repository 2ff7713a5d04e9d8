"""Log-scores of texts and of their distorted copies, from one call of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lm_latent_eval.contrastive.noise import TextNoise, WhiteSpaceWords, distinct_words
from lm_latent_eval.scoring.string_scorers import Scorable, string_scorer
from lm_latent_eval.text.noise import NoiseChannel


@dataclass(frozen=True)
class ScoredCopies:
    """Log-scores of texts and of their copies from a noise channel."""

    log_scores: list[float]
    """Nats, a text."""
    stderrs: list[float]
    """Their Monte Carlo errors, 0 of scores that are just numbers; ``inf`` where that
    of a text, or of one of its copies, is not known."""
    distorted: dict[float, list[list[float]]]
    """Level -> replicate -> nats, a text."""
    num_words: list[int]
    """Between white space, a text; the same in its copies."""
    vocabulary_size: int
    """Of what substitutes were drawn from."""


def score_copies(
    texts: Sequence[str],
    scorer: Scorable,
    *,
    levels: Sequence[float],
    replicates: int,
    vocabulary: Sequence[str] | None = None,
    seed: int = 0,
) -> ScoredCopies:
    """Score texts and, in the same call, their distorted copies.

    Args:
        texts: Sentences; what is between white space counts as a word.
        scorer: Asked once, of all of it; see ``string_scorer``.
        levels: Of distortion, each from 0 to 0.5: so many words are substituted, and as
            many transposed.
        replicates: Distorted copies a text and level.
        vocabulary: What substitutes are drawn from; None is the words of ``texts``.
        seed: Of the noise.

    Raises:
        TypeError: If ``texts`` is one string.
        ValueError: If there is no text, level or replicate, a text has no word, a level
            is impossible, or the scorer does not return one finite number a text.

    Example:
        >>> scored = score_copies(
        ...     ["to be or not"], lambda texts: [-1.0 * len(t) for t in texts],
        ...     levels=[0.0], replicates=2,
        ... )
        >>> scored.log_scores, scored.distorted
        ([-12.0], {0.0: [[-12.0], [-12.0]]})
    """
    if isinstance(texts, str):
        raise TypeError("expected a list of strings, not one string")
    if len(texts) == 0 or len(levels) == 0 or replicates < 1:
        raise ValueError(
            "there must be texts, levels and replicates; got "
            f"{len(texts)}, {len(levels)} and {replicates}"
        )
    for index, text in enumerate(texts):
        if not text.split():
            raise ValueError(
                f"texts[{index}] is {text!r}: no word to distort; leave it out"
            )
    words = distinct_words(texts) if vocabulary is None else vocabulary
    batch = list(texts)
    for level in levels:
        noise = TextNoise(NoiseChannel.preset(level, words), WhiteSpaceWords(), seed)
        for replicate in range(replicates):
            batch += [noise.distort(t, n, replicate) for n, t in enumerate(texts)]
    given = string_scorer(scorer).score(batch)
    scores, errors = _checked(given.log_p.tolist(), batch), given.stderr.tolist()
    rows = [
        scores[first : first + len(texts)] for first in range(0, len(batch), len(texts))
    ]
    clean, copies = rows[0], iter(rows[1:])
    return ScoredCopies(
        log_scores=clean,
        stderrs=[
            error if all(map(math.isfinite, errors[index :: len(texts)])) else math.inf
            for index, error in enumerate(errors[: len(texts)])
        ],
        distorted={
            level: [next(copies) for _ in range(replicates)] for level in levels
        },
        num_words=[len(text.split()) for text in texts],
        vocabulary_size=len(words),
    )


def _checked(scores: list[float], texts: Sequence[str]) -> list[float]:
    for score, text in zip(scores, texts, strict=True):
        if not math.isfinite(score):
            raise ValueError(f"the scorer gave {score} for {text[:60]!r}")
    return scores
