"""How strings are summed over segmentations, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from lm_latent_eval.arguments import one_of, whole
from lm_latent_eval.scoring.options import ScoringOptions

ESTIMATORS = ["mixed", "canonical", "exact", "beam", "is", "smc"]
PROPOSALS = ["ahead", "lm", "lattice"]
ENDS = ["none", "prefix", "eos"]


@dataclass(frozen=True)
class TokensOptions:
    """How strings are summed over segmentations; every field can move a number.

    Attributes:
        estimator: ``mixed`` (half of K is searched for, the canonical segmentation
            always among it, half is drawn), ``canonical`` (that one alone, as
            ``--model hf``), ``exact`` (every segmentation), ``beam``, ``is``
            (importance sampling) or ``smc`` (particle filters).
        num_samples: K, segmentations of a text that are found or drawn.
        proposal: What draws follow: ``lm``, the network's own next token among those
            that go on with the string, ``ahead``, the same with a guess of what the
            rest will cost, or ``lattice``, a unigram model.
        temperature: Divides the proposal's scores; above 1 flattens it.
        seed: Of all random numbers.
        end: What follows a scored text: ``none`` (a token border, as ``--model hf``),
            ``prefix`` (anything: its last token may write more) or ``eos`` (the end
            token).
        context_tokens: How many canonical tokens at the end of a context are summed
            over again, those before being given as they are; None: all.
        max_segmentations: The most that ``exact`` lists of one text.
    """

    estimator: str = "mixed"
    num_samples: int = 100
    proposal: str = "ahead"
    temperature: float = 1.0
    seed: int = 0
    end: str = "none"
    context_tokens: int | None = 8
    max_segmentations: int = 100_000

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> TokensOptions:
        """Check and convert options as they come from a command line.

        Raises:
            ValueError: If there is no such option, or a value is not one that it can
                have.

        Example:
            >>> TokensOptions.parse({"num_samples": "20", "context_tokens": "all"})
            ... # doctest: +ELLIPSIS
            TokensOptions(estimator='mixed', num_samples=20, ..., context_tokens=None...
        """
        names = [field.name for field in fields(cls)]
        for name in options:
            one_of("argument of latent_tokens", name, names)
        read = cls(**{name: _READ[name](value) for name, value in options.items()})
        if read.estimator == "mixed" and read.num_samples < 2:
            raise ValueError(
                f"num_samples={read.num_samples}: estimator=mixed needs at least 2, "
                "one to find and one to draw"
            )
        return read


def _temperature(value: Any) -> float:
    return ScoringOptions.parse(temperature=value).temperature


def _context_tokens(value: Any) -> int | None:
    if value is None or value == "all":
        return None
    return whole("context_tokens", value, 0)


_READ: dict[str, Callable[[Any], Any]] = {
    "estimator": lambda value: one_of("estimator", value, ESTIMATORS),
    "num_samples": partial(whole, "num_samples", least=1),
    "proposal": lambda value: one_of("proposal", value, PROPOSALS),
    "temperature": _temperature,
    "seed": partial(whole, "seed", least=0),
    "end": lambda value: one_of("end", value, ENDS),
    "context_tokens": _context_tokens,
    "max_segmentations": partial(whole, "max_segmentations", least=1),
}
