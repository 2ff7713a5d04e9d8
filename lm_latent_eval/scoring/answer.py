"""What is found for a text, and for a query, which may be several sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.texts import Text


@dataclass(frozen=True)
class Part:
    """What was found for a text."""

    text: Text
    estimate: Estimate
    is_greedy: bool = False
    pilot: int = 0
    """Evaluations of p(x, z) that decided how the others were spent."""


@dataclass(frozen=True)
class Answer:
    """What was found for a query."""

    index: int
    estimate: Estimate
    stream: str
    """Which random numbers were used: equal streams mean shared draws."""
    unspelled: int = 0
    """Unknown words charged as a class: what was scored is more than this string."""
    respaced: int = 0
    """Gaps of unusual white space that were not charged."""
    sentences: int = 1
    """Sentences whose probabilities were multiplied."""
    is_greedy: bool = False
    """Whether a continuation is the argmax of the estimated next-token marginals."""
    evaluations: int = 1
    """Of p(x, z), those of pilots included."""
    replicates: tuple[float, ...] = ()
    """Independent estimates whose mean it is, nats; one where nothing was drawn, none
    where they are not known. Those of answers with one stream used the same draws."""
    canonical: float | None = None
    """Log p of the tokenizer's own segmentation of a whole text, nats, where others are
    summed over."""

    @classmethod
    def of(cls, parts: Sequence[Part], stream: str) -> Answer:
        """Put the parts of one query together."""
        parts = sorted(parts, key=lambda part: part.text.sentence)
        return cls(
            parts[0].text.query.index,
            Estimate.product([part.estimate for part in parts]),
            stream,
            sum(part.text.unspelled for part in parts),
            sum(part.text.respaced for part in parts),
            len(parts),
            all(part.is_greedy for part in parts),
            sum(part.estimate.num_samples + part.pilot for part in parts),
        )


@contextmanager
def noting_progress(found: Sized, of: Sized, what: str) -> Iterator[None]:
    """Add to an interruption how many answers were found, and what became of them."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(f"interrupted: {len(found)} of {len(of)} {what}")
        raise
