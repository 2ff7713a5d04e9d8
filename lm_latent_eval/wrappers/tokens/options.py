"""Options of ``latent_tokens``, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from lm_latent_eval.options import OptionTable, choice, option, whole
from lm_latent_eval.scoring.options import read_temperature

ESTIMATORS = ["dpf", "mixed", "canonical", "exact", "beam", "is", "smc"]
PROPOSALS = ["ahead", "lm", "lattice"]
ENDS = ["none", "prefix", "eos"]


def _context_tokens(name: str, value: Any) -> int | None:
    return None if value in (None, "all") else whole(name, value, 0)


@dataclass(frozen=True)
class TokensOptions(OptionTable):
    """How strings are summed over segmentations; every field can move a number.

    Attributes:
        estimator: ``dpf`` (independent passes over segmentations, thinned without
            bias, whose spread tells the error), ``mixed`` (half of K is searched for,
            half is drawn), ``canonical`` (that segmentation alone, as ``--model hf``,
            which is a term of its own in all others), ``exact`` (every segmentation),
            ``beam``, ``is`` (importance sampling) or ``smc`` (particle filters).
        num_samples: K, segmentations of a text that are found or drawn.
        proposal: What draws follow: ``lm``, the network's own next token among those
            that go on with the string, ``ahead``, the same with a guess of what the
            rest will cost, or ``lattice``, a unigram model.
        temperature: Divides the proposal's scores; above 1 flattens it.
        seed: Of all random numbers.
        end: What follows a scored text: ``none`` (a token border, as ``--model hf``),
            ``prefix`` (anything: its last token may write more) or ``eos`` (the end
            token).
        context_tokens: A context of at most so many canonical tokens is summed over;
            of a longer one that many at its end are, and those before are given as they
            are (a record has bound ``none`` then). ``all`` (None in Python): all.
        max_segmentations: The most that ``exact`` lists of one text.

    Example:
        >>> TokensOptions.parse({"num_samples": "20", "context_tokens": "all"})
        TokensOptions(estimator='dpf', num_samples=20, ..., context_tokens=None...
    """

    estimator: str = choice("dpf", ESTIMATORS)
    num_samples: int = option(100, partial(whole, least=1))
    proposal: str = choice("ahead", PROPOSALS)
    temperature: float = option(1.0, read_temperature)
    seed: int = option(0, partial(whole, least=0))
    end: str = choice("none", ENDS)
    context_tokens: int | None = option(8, _context_tokens)
    max_segmentations: int = option(100_000, partial(whole, least=1))

    @property
    def idle(self) -> tuple[str, ...]:
        """Options that have no effect with this estimator."""
        drawn = ("proposal", "temperature", "seed")
        if self.estimator == "canonical":
            return ("num_samples", *drawn, "context_tokens", "max_segmentations")
        if self.estimator == "exact":
            return ("num_samples", *drawn)
        if self.estimator == "beam":
            return (*drawn, "max_segmentations")
        if self.estimator == "dpf":
            return ("proposal", "temperature", "max_segmentations")
        return ("max_segmentations",)

    def __post_init__(self) -> None:
        """Refuse a single segmentation of what is both found and drawn."""
        if self.estimator == "mixed" and self.num_samples < 2:
            raise ValueError(
                f"num_samples={self.num_samples}: estimator=mixed needs at least 2, "
                "one to find and one to draw"
            )
