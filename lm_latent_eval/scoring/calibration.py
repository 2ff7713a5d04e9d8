"""How far an estimator is from log p(x), on texts that the model itself has written.

Each text comes with an exact draw from p(z | x), which bounds log p(x) from above. An
estimate below and that bound above hold log p(x) between them on average, however
well or badly the proposal fits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scipy.stats import t as student_t

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference import Mixed
from lm_latent_eval.inference.interface import searching
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.simulation import Simulated, simulate, upper_bound
from lm_latent_eval.latent import LeftToRight
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text, naming

MOST_WORDS = 64
"""Of a text that is drawn, its end included."""
LEVEL = 0.95
WIDER = 10
"""Times as many latents, of which the bound from above takes one that the proposal may
hardly ever draw: among few it counts too much."""


class Calibrated(NamedTuple):
    """A text of the model's, with log p(x) between two numbers on average, in nats."""

    num_tokens: int
    estimate: Estimate
    upper: float

    @property
    def gap(self) -> float:
        """How far they are apart; of chance below 0."""
        return self.upper - self.estimate.log_evidence


@dataclass(frozen=True)
class Calibration:
    """Gaps between bounds below and above, over texts of a model."""

    texts: list[Calibrated]

    @property
    def gap(self) -> float:
        """By how much estimates are too low at most, nats a text: a mean."""
        return statistics.fmean(text.gap for text in self.texts)

    @property
    def half_width(self) -> float:
        """Of the gap's interval of 95 %, Student's t over texts."""
        number = len(self.texts)
        spread = statistics.stdev(text.gap for text in self.texts)
        quantile = student_t.ppf((1 + LEVEL) / 2, number - 1)
        return float(quantile * spread / math.sqrt(number))

    @property
    def unknown(self) -> int:
        """Texts whose estimate has no error."""
        return sum(text.estimate.stderr is None for text in self.texts)

    @property
    def printed(self) -> float:
        """The median of the errors that estimates have, nats; NaN: none has one."""
        errors = [text.estimate.stderr for text in self.texts]
        known = [error for error in errors if error is not None]
        return statistics.median(known) if known else math.nan


def calibrate(scorer: Scorer, number: int, *, most: int = MOST_WORDS) -> Calibration:
    """Draw texts from a model, and estimate each from below and from above.

    Args:
        scorer: Of the model; its options say how texts are estimated. The bound from
            above is by ``mixed`` with ten times as many latents.
        number: Texts to draw. Those that do not end within ``most`` words are left
            out.
        most: Words of a text, its end included, at most 256.

    Raises:
        ValueError: If the model does not say what its choices are, word by word,
            fewer than two of its texts end, or ``most`` is more.
    """
    return Calibration(list(_calibrated(scorer, number, most)))


def _calibrated(scorer: Scorer, number: int, most: int) -> Iterator[Calibrated]:
    if most > PIECE:
        raise ValueError(f"texts of {most} words: expected at most {PIECE}")
    evaluation = scorer.evaluation
    evaluation.refuse_parts("what follows")
    model, reader = evaluation.model, evaluation.reader
    if not isinstance(model, LeftToRight):  # as refuse_parts has it
        raise TypeError(type(model).__name__)
    searching(evaluation.stepwise)

    def costs(words: list[int]) -> list[float]:
        """Let an unknown word be one class, and copied words have no spelling."""
        uttered = model.config.vocab_size
        return [0.0 if word < uttered else -math.inf for word in words]

    def text_of(n: int, words: list[int]) -> Text:
        query = Query(n, f"simulated/{n}", "")
        return Text(query, 0, [], [], words, costs(words), 0.0, 0, 0)

    drawn: dict[int, Simulated] = dict(
        simulate(
            model,
            evaluation.stepwise,
            evaluation.keys([text_of(n, []) for n in range(number)]),
            start=reader.start,
            end=reader.end,
            most=most,
            costs=costs,
            device=model.device,
        )
    )
    if len(drawn) < 2:
        raise ValueError(
            f"{len(drawn)} of {number} texts ended within {most} words, and at least 2 "
            "are needed: draw more texts, or allow longer ones"
        )
    texts = [text_of(n, drawn[n].words) for n in sorted(drawn)]
    missed = Missed([text.query for text in texts])
    method = Mixed(WIDER * (evaluation.options.num_samples or 1))
    for text, answer in scorer.whole_texts.parts(texts, missed):
        with naming(text.query):
            upper = upper_bound(
                model,
                evaluation.proposal,
                method,
                evaluation.collate([text]),
                evaluation.keys([text], "upper")[0],
                drawn[text.query.index].latents,
            )
        yield Calibrated(len(text.words), answer.estimate, upper)
