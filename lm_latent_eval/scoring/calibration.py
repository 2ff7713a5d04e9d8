"""Calibration: gaps between bounds of log p(x), on texts sampled from the model.

An estimate below and the bound above of ``inference.simulation`` hold log p(x) between
them on average, however well or badly the proposal fits.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import stdtrit  # all of scipy.stats takes half a second

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.estimators.paired import FEWEST_TEXTS
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.simulation import simulate, upper_bound
from lm_latent_eval.latent import Latents
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.estimates import whole_texts
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text, naming

MOST_WORDS = 64
"""Limit of the words of a text that is drawn, its end included."""
LEVEL = 0.95
WIDER = 10
"""Factor of the latents for the bound from above. It takes one that the proposal may
hardly ever draw, which counts too much among few."""


class Calibrated(NamedTuple):
    """A text of the model's, with log p(x) between two numbers on average, in nats."""

    num_tokens: int
    estimate: Estimate
    upper: float

    @property
    def gap(self) -> float:
        """Gap between the two; below 0 only by chance."""
        return self.upper - self.estimate.log_evidence


@dataclass(frozen=True)
class Calibration:
    """Gaps between bounds below and above, over texts of a model."""

    texts: list[Calibrated]

    @property
    def gap(self) -> float:
        """Mean gap, an upper limit of the estimates' bias, nats a text."""
        return statistics.fmean(text.gap for text in self.texts)

    @property
    def half_width(self) -> float:
        """Half-width of the gap's interval of 95 %, Student's t over texts."""
        num_texts = len(self.texts)
        spread = statistics.stdev(text.gap for text in self.texts)
        quantile = stdtrit(num_texts - 1, (1 + LEVEL) / 2)
        return float(quantile * spread / math.sqrt(num_texts))

    @property
    def is_told(self) -> bool:
        """Whether the interval holds: of 10 texts and more that are not all alike.

        Most gaps are 0 and few are large, so fewer texts often have none of those: of
        5, 78 % of intervals hold, of 10, 93 %. Exact estimates are no further apart
        than rounding, which says nothing of texts whose estimates are not.
        """
        enough = len(self.texts) >= FEWEST_TEXTS and not self.is_exact
        return enough and self.half_width > 0

    @property
    def is_exact(self) -> bool:
        return all(text.estimate.bound is Bound.EXACT for text in self.texts)

    @property
    def unknown(self) -> int:
        """Texts whose estimate has no error."""
        return sum(text.estimate.stderr is None for text in self.texts)

    @property
    def printed(self) -> float:
        """The median of the errors that estimates have, nats; NaN: none has one."""
        errors = [text.estimate.stderr for text in self.texts]
        finite = [error for error in errors if error is not None]
        return statistics.median(finite) if finite else math.nan


def written(
    scorer: Scorer, number: int, *, most: int = MOST_WORDS
) -> list[tuple[Text, Latents]]:
    """Sample texts from a model, each with its latent.

    Args:
        scorer: Of the model.
        number: Texts to draw. Those that do not end within ``most`` words are left
            out.
        most: Words of a text, its end included, at most 256.

    Raises:
        ValueError: If the model does not say what its choices are, word by word,
            fewer than two of its texts end, or ``most`` is more.
    """
    if most > PIECE:
        raise ValueError(f"texts of {most} words: expected at most {PIECE}")
    evaluation = scorer.evaluation
    evaluation.refuse_parts("what follows")
    model, reader = evaluation.model, evaluation.reader

    def costs(words: list[int]) -> list[float]:
        """Let an unknown word be one class, and copied words have no spelling."""
        uttered = model.config.vocab_size
        return [0.0 if word < uttered else -math.inf for word in words]

    def text_of(n: int, words: list[int]) -> Text:
        query = Query(n, f"simulated/{n}", "")
        return Text(query, 0, [], [], words, costs(words), 0.0, 0, 0)

    simulated = simulate(
        model,
        evaluation.stepwise,
        evaluation.keys([text_of(n, []) for n in range(number)]),
        start=reader.start,
        end=reader.end,
        most=most,
        costs=costs,
        device=model.device,
    )
    # Of the others p(z | x) is the same.
    drawn = {n: text for n, text in simulated if text.words[-1] == reader.end}
    if len(drawn) < 2:
        raise ValueError(
            f"{len(drawn)} of {number} texts ended within {most} words, and at least 2 "
            "are needed: draw more texts, or allow longer ones"
        )
    return [(text_of(n, drawn[n].words), drawn[n].latents) for n in sorted(drawn)]


def calibrate(scorer: Scorer, number: int, *, most: int = MOST_WORDS) -> Calibration:
    """Draw texts from a model, and estimate each from below and from above.

    Args:
        scorer: Of the model; its options say how texts are estimated. The bound from
            above takes ten times as many latents, half of them found, half drawn.
        number: As of ``written``, which raises the same errors.
        most: As of ``written``.

    Raises:
        MissedSupportError: If nothing was found of a text, whose gap has no end.
    """
    evaluation = scorer.evaluation
    drawn = written(scorer, number, most=most)
    latents = {text.name: latent for text, latent in drawn}
    texts = [text for text, _ in drawn]
    missed = Missed([text.query for text in texts])
    half = WIDER * (evaluation.options.num_samples or 1) // 2
    calibrated = []
    for text, answer in whole_texts(evaluation, texts, missed):
        with naming(text.query):
            one = evaluation.whole([text], "upper")
            upper = upper_bound(one, half, latents[text.name])
        calibrated.append(Calibrated(len(text.words), answer.estimate, upper))
    missed.tell()
    return Calibration(calibrated)
