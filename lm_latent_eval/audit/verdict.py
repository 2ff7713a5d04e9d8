"""Verdicts of an audit, and which of them each kind of scorer is expected to get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    UNDETERMINED = "undetermined"


class Kind(StrEnum):
    """Events over which a scorer claims to be a distribution."""

    STRINGS = "strings"
    TOKENS = "tokens"
    WORDS = "words"
    ANSWERS = "answers"

    @property
    def claim(self) -> str:
        return {
            Kind.STRINGS: "p of a string: holds everywhere, charges everything",
            Kind.TOKENS: "p of one sequence of tokens a string: holds at borders of "
            "words, on strings a part of the whole",
            Kind.WORDS: "p of words of a closed vocabulary: holds at borders of words, "
            "and what the vocabulary does not tell apart is not charged",
            Kind.ANSWERS: "p of a whole answer: totals and sameness, no chain rule",
        }[self]


@dataclass(frozen=True)
class Item:
    part: str
    """Part of the audit, for ``--only``."""
    title: str
    may_fail: frozenset[Kind] = frozenset()
    """Kinds of which a failure is expected: it is named and is no alarm."""


_INEXACT = frozenset({Kind.TOKENS, Kind.WORDS, Kind.ANSWERS})
_WHOLE = frozenset({Kind.ANSWERS})
_TOKENS = frozenset({Kind.TOKENS, Kind.ANSWERS})

SIGN = Item("normalization", "no log p is above 0")
LISTS = Item("normalization", "totals of lists are at most 1")
COMPLETE = Item("normalization", "the complete list totals 1")
LARGE = Item("normalization", "totals of large sets are at most 1")
CODE_POINTS = Item("normalization", "code points total at most 1", _INEXACT)
FOLLOWS = Item("causality", "what follows moves no score", _WHOLE)
DOCUMENTS = Item("causality", "other documents move no score")
BORDERS = Item("chain", "log p(ab) = log p(a) + log p(b | a) at words", _WHOLE)
START = Item("chain", "the same at the start of a text", _TOKENS)
INSIDE = Item("chain", "the same inside words and characters", _INEXACT)
ROLLING = Item("chain", "a rolling text is a continuation of nothing", _WHOLE)
WINDOWS = Item("chain", "the same for long texts", frozenset(Kind))
EXCESS = Item("chain", "no long text scores more than its parts", _WHOLE)
REPEATED = Item("sameness", "asked again")
ORDER = Item("sameness", "in another order")
PADDING = Item("sameness", "alone, and beside a long request")
CUT = Item("sameness", "beside the same text, cut elsewhere", frozenset({Kind.TOKENS}))
BATCHES = Item("sameness", "in batches of another size")
CACHE = Item("sameness", "with and without --use_cache")
WITHHELD = Item("sameness", "requests of tasks without their documents")
COUNTS = Item("units", "bytes and words are counted as they are")
CHARGED = Item("units", "everything is charged", _INEXACT)
GREEDY = Item("samples", "is_greedy is the most probable", _WHOLE)
SAMPLES = Item("samples", "samples are as frequent as scored")
ERRORS = Item("errors", "seeds differ by the printed error")

PARTS = (
    "normalization",
    "causality",
    "chain",
    "sameness",
    "units",
    "samples",
    "errors",
)
RANDOM_PARTS = ("normalization", "causality", "chain", "samples", "errors")
"""Parts that chance can fail: each gets an equal share of the audit's level."""


@dataclass(frozen=True)
class Finding:
    """Verdict on one item, with details and witness."""

    item: Item
    verdict: Verdict
    detail: str
    """Why, in a line."""
    witness: Mapping[str, Any] = field(default_factory=dict)
    """Requests and answers that show a failure, as JSON; nats."""
    sees: str = ""
    """The smallest fault that would have been seen, in words; empty: not known."""

    def is_alarm(self, kind: Kind) -> bool:
        """Whether a scorer of that kind must not fail so."""
        return self.verdict is Verdict.FAILS and kind not in self.item.may_fail


def holds(item: Item, detail: str, sees: str = "") -> Finding:
    """Return the finding that an item holds, as far as it ``sees``."""
    return Finding(item, Verdict.HOLDS, detail, sees=sees)


def fails(item: Item, detail: str, **witness: Any) -> Finding:
    """Return the finding that an item fails, with the requests that show it."""
    return Finding(item, Verdict.FAILS, detail, witness)


def undetermined(item: Item, detail: str, sees: str = "") -> Finding:
    """Return the finding that an item cannot be tested, with the reason."""
    return Finding(item, Verdict.UNDETERMINED, detail, sees=sees)
