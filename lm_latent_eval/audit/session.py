"""What every part of an audit has: who is asked, about what, how strictly."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.stats import norm

from lm_latent_eval.audit import material
from lm_latent_eval.audit.requests import Pair, Reply, Requester
from lm_latent_eval.audit.verdict import RANDOM_PARTS, Finding, Kind

LEVEL = 0.05
"""How often an audit of a clean scorer may end in an alarm."""


WRITTEN = 4
"""Texts that a backend writes after a context."""


@dataclass(frozen=True)
class Plan:
    """How much is asked."""

    contexts: int = 5
    width: int = 40
    """Options of a list that are all asked for."""
    draws: int = 250
    """Of options of larger sets."""
    code_points: int = 60
    splits: int = 8
    followers: int = 3
    """Continuations that must not move what is before them."""
    texts: int = 4
    mixed: int = 10
    """Requests whose sameness is looked at."""
    samples: int = 300
    seeds: int = 6
    seeded: int = 8
    """Requests that every seed answers."""

    @classmethod
    def within(cls, requests: int) -> Plan:
        """Return the largest plan of at most so many requests.

        What is left when everything else is asked for goes into draws.

        Raises:
            ValueError: If they are too few for any.
        """
        whole = cls()
        if requests >= whole.total:
            return replace(whole, draws=whole.draws + requests - whole.total)
        for share in np.linspace(1, 0.05, 39):
            plan = whole.times(float(share))
            if plan.total <= requests:
                return plan
        raise ValueError(
            f"--requests {requests}: the smallest audit takes {plan.total}; give more"
        )

    def times(self, share: float) -> Plan:
        """Ask less, or more, of everything."""
        least = {"contexts": 2, "width": 4, "followers": 2, "texts": 2, "seeds": 3}
        return replace(
            self,
            **{
                name: max(least.get(name, 2), math.ceil(size * share))
                for name, size in vars(self).items()
            },
        )

    @property
    def parts(self) -> dict[str, int]:
        """Requests a part, if the scorer refuses none."""
        lists = self.contexts * (self.width + WRITTEN)
        ended = self.texts * (self.width + WRITTEN)
        return {
            "normalization": lists + self.draws + 2 * self.code_points,
            "causality": 2 * self.contexts * self.followers + 5 * self.texts,
            "chain": 9 * self.splits + 2 * self.texts + ended + 12,
            "sameness": 16 * (self.mixed + self.texts) + 3 * self.texts,
            "units": 2 * self.texts + 24,
            "samples": self.samples + self.contexts * (self.width + 1) + self.width,
            "errors": self.seeds * self.seeded,
        }

    @property
    def total(self) -> int:
        """Requests of all parts, if the scorer refuses none."""
        return sum(self.parts.values())


@dataclass
class Session:
    """One audit of one scorer."""

    ask: Requester
    kind: Kind
    plan: Plan = field(default_factory=Plan)
    texts: Sequence[str] = material.TEXTS
    options: Sequence[str] = ()
    """A closed list of continuations, as they follow any context."""
    complete: bool = False
    """Whether nothing else can follow."""
    tolerance: float = 1e-3
    """By how much rounding may move a score, nats."""
    seed: int = 0
    counted: Sequence[Finding] = ()
    """What tasks have shown of the counts that their results divide by."""
    begin: Callable[[], object] = lambda: None
    """Called before each part, such as to seed what backends draw from."""

    @property
    def level(self) -> float:
        """The chance of a false alarm that a part has."""
        return LEVEL / len(RANDOM_PARTS)

    def rng(self, name: str) -> np.random.Generator:
        """Return random numbers of a part alone, so that it repeats without others."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def slack(self, *replies: Reply, comparisons: int = 1) -> float:
        """Return what a sum of scores may be off by: rounding, and printed errors.

        Args:
            replies: The scores.
            comparisons: How many are made, among which the level of a part is shared.
        """
        error = math.sqrt(sum(reply.error**2 for reply in replies))
        if not error:
            return self.tolerance
        return self.tolerance + error * float(
            norm.isf(self.level / (2 * max(comparisons, 1)))
        )

    @cached_property
    def spaced(self) -> bool:
        """Whether texts have several words.

        Where they have not, those who score more than words are asked about characters.
        """
        of_words = self.kind in (Kind.TOKENS, Kind.WORDS)
        return of_words or any(map(material.cuts, self.texts))

    def cuts(self, text: str) -> list[int]:
        """Return where a text can be cut: after words, or else anywhere."""
        return material.cuts(text) if self.spaced else material.inside(text)

    def places(self, number: int, rng: np.random.Generator) -> list[tuple[str, str]]:
        """Cut texts into contexts and what follows."""
        return material.contexts(self.texts, number, rng, self.cuts)

    @cached_property
    def words(self) -> list[str]:
        """The words of the texts, or their characters, the most frequent first."""
        texts = self.texts if self.spaced else map(" ".join, self.texts)
        return material.words(texts)

    def after(self, context: str) -> list[str]:
        """Return words as they follow a context."""
        space = " " if context and self.spaced else ""
        return [f"{space}{word}" for word in self.words]

    def contexts(self, rng: np.random.Generator) -> list[str]:
        """Return what lists follow: nothing, unless a list is given, and words."""
        places = self.places(self.plan.contexts, rng)
        found = [context for context, _ in places]
        return found if self.options and found else ["", *found[1:]]

    def following(self, context: str, written: Sequence[str] = ()) -> list[str]:
        """Return options after a context, of which at most one can be true.

        Args:
            context: It ends where a word does.
            written: What the backend itself has written there.
        """
        if self.options:
            return self.options_alone
        options = [*written, *self.after(context)]
        if self.kind is Kind.WORDS:  # no word of theirs is the beginning of another
            return [*dict.fromkeys(options)]
        return material.prefix_free(options)

    def written(self, context: str) -> list[str]:
        """Return words that the backend itself writes next: what it finds probable.

        Those that end where another begins: the others are perhaps cut.
        """
        if self.options or not context or not self.spaced:
            return []
        texts = self.ask.write(context, WRITTEN, tokens=12, sample=True) or []
        firsts = [text.split(maxsplit=1) for text in texts if text[:1].isspace()]
        return [f" {words[0]}" for words in firsts if len(words) == 2]

    @cached_property
    def options_alone(self) -> list[str]:
        """The closed list: what it holds twice is there once."""
        return [*dict.fromkeys(self.options)]


Part: TypeAlias = Callable[[Session], Iterator[Finding]]


def off(sides: float, slack: float) -> bool:
    """Whether a difference that should be 0 is not; NaN is told elsewhere."""
    return abs(sides) > slack


def request(pair: Pair, reply: Reply) -> dict[str, object]:
    """Return a request with its answer, as witnesses have it."""
    answer: dict[str, object] = {"log_p": reply.log_p}
    if reply.stderr is not None:
        answer["stderr"] = reply.stderr
    return {"context": pair[0], "continuation": pair[1], **answer}
