"""Floats for lm-eval that carry their ``Estimate`` to our metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.scoring.answer import Answer

Score = TypeVar("Score", bound=float)


def score_of(result: float | tuple[float, bool]) -> float:
    """Return the log-likelihood of a result, nats.

    lm-eval 0.5 pairs that of a whole text with a truth value, as of a continuation.
    """
    return result[0] if isinstance(result, tuple) else result


def of_whole_text(arguments: Sequence[Any], score: Score) -> Score | tuple[Score, bool]:
    """Answer a request for a whole text as it was asked.

    Args:
        arguments: ``(text,)`` of lm-eval 0.4, which wants the number, or
            ``("", text)`` of 0.5, which wants it in a pair.
        score: Nats.
    """
    return score if len(arguments) == 1 else (score, False)


def recorded(score: float, task: str) -> Answer:
    """Return the answer that a log-likelihood carries.

    Args:
        score: What a model answered.
        task: Which divides it by tokens.

    Raises:
        MissedSupportError: If the text has none.
        ValueError: If it carries none, as those of models that are not ours.
    """
    if isinstance(score, MissedFloat):
        raise MissedSupportError(score.why)
    if not isinstance(score, ScoredFloat):
        raise ValueError(
            f"{task} is per token of the model, and this model's log-likelihoods do "
            "not say how many tokens they are of: score it with a task of rates per "
            "word and byte, such as latent_perplexity"
        )
    return score.answer


class MissedFloat(float):
    """In place of the log-likelihood of a text that no latent was found of.

    ``-inf``, the logarithm of the estimate: with it lm-eval's own rates are infinite,
    and the option of a question is never chosen. A run that has one ends in an error
    (``harness.unscored``).
    """

    name: str
    why: str

    def __new__(cls, name: str, why: str) -> MissedFloat:
        """Say which text it is, and what was wrong."""
        value = super().__new__(cls, -math.inf)
        value.name, value.why = name, why
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the reason: caches keep it."""
        return MissedFloat, (self.name, self.why)


class ScoredFloat(float):
    """A log-likelihood in nats with the answer that it is.

    lm-eval treats it as a float; it survives its evaluator, its cache and its workers.
    """

    answer: Answer

    def __new__(cls, answer: Answer) -> ScoredFloat:
        value = super().__new__(cls, answer.estimate.log_evidence)
        value.answer = answer
        return value

    @property
    def estimate(self) -> Estimate:
        """The estimate that the number is."""
        return self.answer.estimate

    def __reduce__(self) -> tuple[Any, ...]:
        return ScoredFloat, (self.answer,)


Scored: TypeAlias = ScoredFloat | MissedFloat
"""What a request is answered with."""
