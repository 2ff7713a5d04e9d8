"""What a published number must say of itself, or is not exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lm_latent_eval.estimators import Bound, certificate_cost
from lm_latent_eval.report.numbers import RATES, Number, numbers
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import CERTIFIED
from lm_latent_eval.scoring.records import WITHOUT_NUMBER, Record

DELTA = 0.05
SETTINGS = ("estimator", "num_samples", "proposal", "temperature", "seed", "unk")
REQUIRED = ("model", "checkpoint", "estimator")
_DRAWN = ("num_samples", "proposal", "temperature", "seed")
"""What must be known of draws."""
OF_LOG_P = {
    Bound.EXACT: "exact",
    Bound.STRICT_LOWER: "strict upper bound of the true value",
    Bound.STOCHASTIC_LOWER: "stochastic upper bound of the true value",
    Bound.ESTIMATED_LOWER: "estimate of an upper bound of the true value",
    Bound.NONE: "none",
    Bound.UNNORMALISED: "none: scores are not normalised",
}
"""What a rate or perplexity is, where the log-likelihood has such a bound."""


@dataclass(frozen=True)
class Statement:
    """A task's numbers, each with what it needs to be understood."""

    record: Record
    numbers: dict[str, Number]
    """Those that can be published: rates per unit, or an accuracy."""
    bound: Bound
    num_documents: int

    @classmethod
    def of(cls, record: Record) -> Statement:
        """Check that nothing is missing.

        Raises:
            ValueError: If the run is not finished, something that a number depends on
                is not known, or there is no number.
        """
        if not record.finished:
            lacking = record.settings.get(WITHOUT_NUMBER)
            raise ValueError(
                f"{record.task} has no number of {len(lacking)} texts ({lacking[0]}): "
                "draw more samples"
                if lacking
                else f"{record.task} is not finished: finish the run first"
            )
        bound = Bound.weakest(answer.estimate.bound for answer in record.answers)
        needed = REQUIRED + (_DRAWN if bound is not Bound.EXACT else ())
        missing = [name for name in needed if record.settings.get(name) is None]
        if missing:
            raise ValueError(
                f"{record.task} does not say {', '.join(missing)}, on which its "
                "numbers depend: run it again with this version"
            )
        found = {
            name: number
            for name, number in numbers(record).items()
            if (name in RATES or name == "acc") and not isinstance(number.value, str)
        }
        if not found:
            raise ValueError(f"{record.task} has no number to export")
        documents = len({answer.index for answer in record.answers})
        if documents < 2:
            raise ValueError(
                f"{record.task} has one text: an error over texts takes at least two"
            )
        return cls(record, found, bound, documents)

    @property
    def settings(self) -> dict[str, Any]:
        """What the numbers depend on."""
        known = self.record.settings
        return {name: known[name] for name in SETTINGS if known.get(name) is not None}

    def certified(self, metric: str) -> float | None:
        """Return what a rate is at most at 95 % confidence over the draws.

        None of an accuracy, and where a number bounds nothing. Strict bounds and exact
        numbers are it themselves.
        """
        unit = RATES.get(metric)
        if unit is None or self.bound not in CERTIFIED:
            return None
        answers = self.record.answers
        total = sum(answer.estimate.log_evidence for answer in answers)
        units = sum(getattr(answer, unit.name) for answer in answers)
        return unit.value((slack(answers, self.bound) - total) / units)

    @property
    def note(self) -> str:
        """How the numbers came about, in a line."""
        how = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        bound = OF_LOG_P[self.bound]
        checkpoint = self.record.settings["checkpoint"]
        return (
            f"lm-latent-eval: {how}; bound: {bound}; checkpoint {checkpoint}; "
            f"{self.texts}"
        )

    @property
    def texts(self) -> str:
        """Which texts the numbers are of."""
        kind = "questions" if "acc" in self.numbers else "texts"
        return f"{self.num_documents:,} {kind}, digest {self.record.texts_digest}"


def slack(answers: Sequence[Answer], bound: Bound) -> float:
    """Return the nats of the certificate (Markov's inequality)."""
    if bound is not Bound.STOCHASTIC_LOWER:
        return 0.0
    streams = Counter(a.stream for a in answers if a.estimate.bound is bound)
    return certificate_cost(1 - DELTA, multiplicity=max(streams.values()))
