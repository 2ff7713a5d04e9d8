"""Log-scores of texts and of their distorted copies, scored in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lm_latent_eval.contrastive.text_noise import TextNoise
from lm_latent_eval.contrastive.units import WhiteSpaceWords
from lm_latent_eval.contrastive.vocabulary import distinct_words
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.score_functions import ScoreFunction
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
    scorer: ScoreFunction,
    *,
    levels: Sequence[float],
    replicates: int,
    vocabulary: Sequence[str] | None = None,
    seed: int = 0,
) -> ScoredCopies:
    """Score texts and, in the same call, their distorted copies.

    Args:
        texts: Sentences; what is between white space counts as a word.
        scorer: Called once, with all of it.
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
    given = scorer(batch)
    scores, errors = _checked_scores(given, batch), [_stderr(score) for score in given]
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


def _stderr(score: float | Estimate) -> float:
    if not isinstance(score, Estimate):
        return 0.0
    return math.inf if score.stderr is None else score.stderr


def _checked_scores(
    scores: Sequence[float | Estimate | None], texts: Sequence[str]
) -> list[float]:
    if len(scores) != len(texts):
        raise ValueError(f"the scorer gave {len(scores)} scores of {len(texts)} texts")
    found = []
    for given, text in zip(scores, texts, strict=True):
        score = given.log_evidence if isinstance(given, Estimate) else given
        if score is None or not math.isfinite(score):
            raise ValueError(f"the scorer gave {score} for {text[:60]!r}")
        found.append(float(score))
    return found
