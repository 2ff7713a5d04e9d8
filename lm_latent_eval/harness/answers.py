"""Answers to lm-eval's requests: floats that carry estimates, and the cache of them.

lm-eval keys its cache (``--use_cache``) by the request alone. The fingerprint of model
and estimator is stored beside the answers, and a cache with another one is refused. An
answer is in the file before the next one is asked for, so a run that is killed loses
none.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from lm_eval.api.model import CacheHook

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.ledger.settings import differences
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
    """Log-likelihood ``-inf`` of a text of which no latent was found.

    ``-inf``, the logarithm of the estimate: with it lm-eval's own rates are infinite,
    and the option of a question is never chosen. A run that has one ends in an error
    (``harness.running.end``).
    """

    name: str
    why: str

    def __new__(cls, name: str, why: str) -> MissedFloat:
        """Keep the text's name and the reason."""
        value = super().__new__(cls, -math.inf)
        value.name, value.why = name, why
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the reason: caches keep it."""
        return MissedFloat, (self.name, self.why)


class ScoredFloat(float):
    """A log-likelihood in nats that carries its answer.

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
"""Answers to requests."""


FINGERPRINT = "lm_latent_eval fingerprint"


class CacheMismatchError(ValueError):
    """A cache whose numbers come from another model or other settings."""


class GuardedHook(CacheHook):
    """Cache hook that adds answers to a cache of the same settings.

    Attributes:
        dbdict: The cache, or None where there is none.
    """

    def __init__(self, cache_hook: CacheHook, fingerprint: dict[str, Any]) -> None:
        """Store the fingerprint in a new cache; compare it with that of an old one.

        Args:
            cache_hook: What lm-eval gives.
            fingerprint: Everything that an answer depends on.

        Raises:
            CacheMismatchError: If the cache was made with other settings, or by a model
                that left no fingerprint.
            OSError: If the cache is damaged or cannot be written.
        """
        self.dbdict = cache_hook.dbdict
        if self.dbdict is not None:
            # It logs every error, thirty lines of it, and raises it as well.
            logging.getLogger("sqlitedict").setLevel(logging.CRITICAL)
            with _one_line(self.dbdict):
                _guard(self.dbdict, fingerprint)

    def add_partial(self, attr: str, req: Iterable[Any], res: Any) -> None:
        """Write an answer.

        Raises:
            OSError: If the cache cannot be written.
        """
        if self.dbdict is not None:
            with _one_line(self.dbdict):
                super().add_partial(attr, req, res)
                self.dbdict.commit()


@contextmanager
def _one_line(answers: Any) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as err:
        raise OSError(
            f"{answers.filename} cannot be used ({err}): if the disk is full or "
            "another program uses the file, end that and repeat the command, which "
            "goes on from the answers in it; if it is damaged, remove it"
        ) from err


def _guard(answers: Any, fingerprint: dict[str, Any]) -> None:
    where = answers.filename
    mine = json.loads(json.dumps(fingerprint))
    stored = answers.get(FINGERPRINT)
    if stored is None:
        if len(answers):
            raise CacheMismatchError(
                f"{where} holds {len(answers)} answers of a model that left no "
                "fingerprint: give --use_cache another path"
            )
        answers[FINGERPRINT] = mine
        answers.commit()
        return
    if different := differences(stored, mine):
        raise CacheMismatchError(
            f"{where} was made with other settings ({different}): give --use_cache "
            "another path, or repeat the settings"
        )
