"""Options of ``latent_tokens``, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from lm_latent_eval.options import OptionTable, choice, option, whole

ESTIMATORS = ["dpf", "canonical", "exact", "beam", "is"]
ENDS = ["none", "prefix", "eos"]


def _context_tokens(name: str, value: Any) -> int | None:
    return None if value in (None, "all") else whole(name, value, 0)


@dataclass(frozen=True)
class TokensOptions(OptionTable):
    """How strings are summed over segmentations; every field can move a number.

    Attributes:
        estimator: ``dpf`` (independent passes, thinned without bias), ``canonical``
            (one sequence, as ``--model hf``), ``exact`` (every sequence), ``beam`` or
            ``is`` (importance sampling).
        num_samples: K, segmentations of a text that are found or drawn.
        seed: Seed of all random numbers.
        end: What follows a scored text: ``none`` (a token border, as ``--model hf``),
            ``prefix`` (anything: its last token may write more) or ``eos`` (the end
            token).
        context_tokens: Canonical tokens at a context's end that are summed over. Those
            before are given, and the bound is ``none``. ``all`` (None in Python): all.
        max_segmentations: The most that ``exact`` lists of one text.

    Example:
        >>> TokensOptions.parse({"num_samples": "20", "context_tokens": "all"})
        TokensOptions(estimator='dpf', num_samples=20, ..., context_tokens=None...
    """

    estimator: str = choice("dpf", ESTIMATORS)
    num_samples: int = option(100, partial(whole, least=1))
    seed: int = option(0, partial(whole, least=0))
    end: str = choice("none", ENDS)
    context_tokens: int | None = option(8, _context_tokens)
    max_segmentations: int = option(100_000, partial(whole, least=1))

    @property
    def idle(self) -> tuple[str, ...]:
        if self.estimator == "canonical":
            return ("num_samples", "seed", "context_tokens", "max_segmentations")
        if self.estimator == "exact":
            return ("num_samples", "seed")
        if self.estimator == "beam":
            return ("seed", "max_segmentations")
        return ("max_segmentations",)
