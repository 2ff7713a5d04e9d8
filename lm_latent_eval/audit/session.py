"""Session of an audit: backend, texts, number of requests, tolerances.

A scorer is asked as lm-eval asks it, by three kinds of requests, which are counted.
"""

from __future__ import annotations

import math
import re
import string
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.special import ndtri

from lm_latent_eval.audit.verdict import RANDOM_PARTS, Finding, Kind

Pair = tuple[str, str]
"""A context and its continuation."""
T = TypeVar("T")
TEXTS = (
    "The miller's daughter counted twelve geese before the rain came down.",
    "Nobody in the valley had seen a bridge as old as this one, and it still stood.",
    "He wrote seventeen letters in the winter, and she answered none of them.",
    "The river was high after the rain, so the ferry did not go out that day.",
    "In the morning the children went to the market with their mother.",
    "It was a small house at the end of the road, with a red door and two windows.",
    "They had been in the town for a year when the new school was opened.",
    "She said that the train would be late, but it came on time after all.",
)
"""Default texts."""
ODD_CHARACTERS = ("cafe\u0301", "nai\u0308ve", "\U0001f469\u200d\U0001f52c", "日本語")
"""Words with several code points a character, or several bytes a code point."""
LEVEL = 0.05
"""Probability that the audit of a clean scorer ends in an alarm."""
ERROR_UNKNOWN = "errors of its scores are not known"
TOLERANCE = 1e-3
"""Largest rounding of a score in single or double precision, nats."""
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Types of half precision, and their relative distance of neighbouring numbers."""
OF_LOGITS = 16
"""Largest effect of a logit's noise on a token's log p, in these distances."""
SAMPLED = 2
"""Contexts whose samples are compared with scores."""
CHARACTERS = 3
"""Compared characters of a sample of strings: of one length, they are exclusive."""
LEAST_SCORES = 4
"""Different scores that tell a precision."""
PROMISED_TOTAL, PROMISED_TEMPERATURE = 1.5, 0.8
"""An item that would only see larger faults than these is undetermined: totals of
probabilities, and temperatures of scores beside those of samples."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A scorer's answer to one request."""

    log_p: float
    """Nats; NaN of a request that was refused."""
    is_greedy: bool = False
    stderr: float | None = None
    """The Monte Carlo error that it prints, nats; None where it prints none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """``bytes`` and ``words``, where the answer says how many it is of."""
    refused: str = ""
    """The error in the place of an answer."""
    is_lower_bound: bool = False
    """Whether log p is at least that, always: of a total it hides nothing."""

    @property
    def p(self) -> float:
        """The probability; 0 of what was refused."""
        if math.isnan(self.log_p):
            return 0.0
        return math.exp(self.log_p) if self.log_p < 700 else math.inf

    @property
    def error(self) -> float:
        """The Monte Carlo error, nats; 0 where none is printed, ``inf``: not known."""
        return self.stderr or 0.0

    @property
    def lacking(self) -> str:
        """Why it cannot be judged; empty where it can."""
        return self.refused or (ERROR_UNKNOWN if math.isinf(self.error) else "")


def half_precision(scores: Iterable[float]) -> str | None:
    """Return the type of half precision that scores are numbers of; None: of none.

    Example:
        >>> half_precision([-9.5, -2.25, -38.75, -0.5])
        'bfloat16'
        >>> half_precision([-9.5, -2.25, -38.75, -0.1]) is None
        True
    """
    finite = {score for score in scores if score and math.isfinite(score)}
    if len(finite) < LEAST_SCORES:
        return None
    for name, epsilon in EPSILON.items():
        # A number of b bits is a whole number of units in its last place.
        if all((math.frexp(s)[0] * 2 / epsilon).is_integer() for s in finite):
            return name
    return None


Scored = list[tuple[Pair, Reply]]
"""Requests with their answers."""


class Answered(NamedTuple):
    """A request of a task, with the answer that the task got."""

    is_text: bool
    """Whether a whole text was scored; its context is empty."""
    pair: Pair
    reply: Reply


class Backend(Protocol):
    """A model of lm-eval, ours or not."""

    def score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Answer ``loglikelihood`` requests, in one call."""

    def score_texts(self, texts: Sequence[str]) -> list[Reply]:
        """Answer ``loglikelihood_rolling`` requests, in one call."""

    def write(self, contexts: Sequence[str], *, tokens: int, sample: bool) -> list[str]:
        """Answer ``generate_until`` requests, in one call.

        Args:
            contexts: Contexts to continue.
            tokens: The most to write.
            sample: By chance at temperature 1, or greedily.
        """

    @property
    def window(self) -> int | None:
        """The tokens that are read at once; None: the model does not say."""

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, if there is a window."""

    def reopened(self, **changes: str) -> Backend:
        """Open the model anew with some arguments changed."""

    def cached(self) -> AbstractContextManager[Backend]:
        """Put a new cache of lm-eval's before the model."""


class OverBudgetError(ValueError):
    """More requests than an audit said that it would make."""


class Requester:
    """Sends and counts requests; turns errors into refusals of single requests."""

    def __init__(self, backend: Backend, most: float = math.inf) -> None:
        """Keep the backend.

        Args:
            backend: The model.
            most: Requests that may be made in all.
        """
        self.backend, self.most, self.requests = backend, most, 0
        self.likeliest: tuple[object, Reply] | None = None
        """The request whose log p is the largest, with its answer."""

    def score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Return log p of continuations after their contexts."""
        return self._answers(self.backend.score, pairs)

    def score_each(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Return the same from one call for each request."""
        return [reply for pair in pairs for reply in self.score([pair])]

    def score_texts(self, texts: Sequence[str]) -> list[Reply]:
        """Return log p of whole texts."""
        return self._answers(self.backend.score_texts, texts)

    def write(
        self, context: str, number: int, *, tokens: int, sample: bool
    ) -> list[str] | None:
        """Return continuations that a backend writes; None if it writes none."""
        self._count(number)
        try:
            return self.backend.write([context] * number, tokens=tokens, sample=sample)
        except Exception:  # of code that is not ours
            return None

    def over(self, backend: Backend) -> Requester:
        """Return a requester of another backend that shares this one's count."""
        other = Requester(backend, self.most)
        other._count = self._count  # type: ignore[method-assign]
        other._remember = self._remember  # type: ignore[method-assign]
        return other

    def _remember(self, requests: Sequence[object], replies: Sequence[Reply]) -> None:
        for one, reply in zip(requests, replies, strict=True):
            likeliest = self.likeliest
            if reply.lacking or math.isnan(reply.log_p):
                continue
            if likeliest is None or reply.log_p > likeliest[1].log_p:
                self.likeliest = one, reply

    def _count(self, number: int) -> None:
        self.requests += number
        if self.requests > self.most:
            raise OverBudgetError(
                f"the audit would make more than the {self.most:.0f} requests that it "
                "announced: the backend refuses so many that asking them one by one "
                "again is too much. Give --data with texts that it can score"
            )

    def _answers(
        self, ask: Callable[[Sequence[T]], list[Reply]], requests: Sequence[T]
    ) -> list[Reply]:
        """Send all requests together; after an error, one by one."""
        if not requests:
            return []
        self._count(len(requests))
        try:
            replies = ask(requests)
            self._remember(requests, replies)
            return replies
        except Exception as err:  # of code that is not ours
            if len(requests) == 1:
                detail = " ".join(f"{type(err).__name__}: {err}".split())[:200]
                return [Reply(math.nan, refused=detail)]
        return [reply for one in requests for reply in self._answers(ask, [one])]


def word_ends(text: str) -> list[int]:
    """Return where words end and others follow: before the white space between them.

    Example:
        >>> word_ends("Ada saw  Bo")
        [3, 7]
    """
    return [m.start() for m in re.finditer(r"(?<=\S)\s+(?=\S)", text)]


def inside_words(text: str) -> list[int]:
    """Return places inside words."""
    return [m.start() for m in re.finditer(r"(?<=\w)(?=\w)", text)]


def exclusive(scored: Scored) -> Scored:
    """Leave out options until none begins with another: the less probable ones.

    Example:
        >>> def scored(**p):
        ...     return [(("", y), Reply(math.log(p[y]))) for y in p]
        >>> [y for (_, y), _ in exclusive(scored(t=0.1, the=0.2, then=0.05, a=0.1))]
        ['the', 'a']
    """
    kept: list[str] = []
    for (_, option), _ in sorted(scored, key=lambda one: -one[1].p):
        if not any(option.startswith(k) or k.startswith(option) for k in kept):
            kept.append(option)
    return [one for one in scored if one[0][1] in kept]


def told_apart(scored: Scored) -> Scored:
    """Leave out options that score as an earlier one, as all unknown words may."""
    kept: dict[float, tuple[Pair, Reply]] = {}
    refused = [one for one in scored if math.isnan(one[1].log_p)]
    for one in scored:
        if not math.isnan(one[1].log_p):
            kept.setdefault(round(one[1].log_p, 9), one)
    return [*kept.values(), *refused]


@dataclass(frozen=True)
class Plan:
    """Numbers of requests of each part."""

    contexts: int = 5
    width: int = 40
    """Options of a list that are all asked for."""
    written: int = 32
    """Continuations of a context that the backend itself writes, to be options."""
    draws: int = 250
    """Draws of options from larger sets."""
    code_points: int = 60
    splits: int = 8
    at_edges: int = 32
    """Words that are tried at each edge of a window."""
    followers: int = 3
    """Continuations that must not move what is before them."""
    texts: int = 4
    mixed: int = 10
    """Requests whose sameness is looked at."""
    samples: int = 600
    """Continuations that it writes, to be compared with its scores."""
    seeds: int = 6
    seeded: int = 8
    """Requests that every seed answers."""

    @classmethod
    def within(cls, requests: int) -> Plan:
        """Return the largest plan of at most so many requests.

        What is left when everything else is asked for goes into draws and samples.

        Raises:
            ValueError: If they are too few for any.
        """
        whole = cls()
        if requests >= whole.total:
            half, more = divmod(requests - whole.total, 2)
            draws, samples = whole.draws + half + more, whole.samples + half
            return replace(whole, draws=draws, samples=samples)
        for share in np.linspace(1, 0.05, 39):
            plan = whole.times(float(share))
            if plan.total <= requests:
                return plan
        raise ValueError(
            f"--requests {requests}: the smallest audit takes {plan.total}; give more"
        )

    def times(self, share: float) -> Plan:
        """Scale all numbers by a factor."""
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
        lists = self.contexts * (self.width + self.written)
        ended = self.texts * (self.width + self.written)
        edges = 2 * (3 * self.at_edges + 2)
        return {
            "normalization": lists + self.draws + 2 * self.code_points,
            "causality": 2 * self.contexts * self.followers + 5 * self.texts,
            "chain": 9 * self.splits + 2 * self.texts + ended + edges + 40,
            "sameness": 15 * (self.mixed + self.texts) + 3 * self.texts,
            "units": 2 * self.texts + 24,
            "samples": self.samples
            + self.contexts * (self.width + 2)
            + SAMPLED * self.width,
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
    texts: Sequence[str] = TEXTS
    options: Sequence[str] = ()
    """A closed list of continuations, as they follow any context."""
    complete: bool = False
    """Whether nothing else can follow."""
    tolerance: float | None = None
    """Largest rounding of a score, nats; None: by its precision."""
    precision: str | None = None
    """The floating type that scores are computed in, by name; None: nobody says."""
    seed: int = 0
    counted: Sequence[Finding] = ()
    """Findings on the counts that results of tasks divide by."""
    answered: Sequence[Answered] = ()
    """Requests of tasks, with what tasks were answered."""
    begin: Callable[[], object] = lambda: None
    """Called before each part, such as to seed what backends draw from."""

    def __post_init__(self) -> None:
        """Leave out options that are given twice."""
        self.options = [*dict.fromkeys(self.options)]

    @property
    def level(self) -> float:
        """The chance of a false alarm that a part has."""
        return LEVEL / len(RANDOM_PARTS)

    def rng(self, name: str) -> np.random.Generator:
        """Return a part's own random generator, so that it can be repeated alone."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def rounding(self, *replies: Reply) -> float:
        r"""Return what rounding may move a sum of scores by, nats.

        That is ``tolerance``, or 0.001 nats and in half precision for each score of
        :math:`\ell = |\log p|`

        .. math:: \epsilon\,(1 + \ell + 16 \sqrt\ell),

        the root of the sum of squares. :math:`\epsilon\ell` bounds the rounding of the
        log p of tokens and of their sum, by half a unit each; 1 is that of normalizers
        where p is near 1. The rest is noise of logits, which other shapes of a batch
        change: where those of each token move by :math:`\delta` independently, its
        log p moves by :math:`(1 - p)\delta` to first order, and the sum by
        :math:`\delta \sqrt{\sum (1 - p)^2} \le \delta \sqrt\ell`. At
        :math:`\delta = 16 \epsilon`, a unit in the last place of logits from 16 to 32,
        errors of trained networks were half of it at most.
        """
        if self.tolerance is not None:
            return self.tolerance
        moved, epsilon = 0.0, EPSILON.get(self.precision or "", 0.0)
        for reply in replies if epsilon else ():
            if math.isfinite(nats := abs(reply.log_p)):
                moved += (1 + nats + OF_LOGITS * math.sqrt(nats)) ** 2
        return TOLERANCE + epsilon * math.sqrt(moved)

    def slack(self, *replies: Reply, comparisons: int = 1) -> float:
        """Return what a sum of scores may be off by: rounding, and printed errors.

        Args:
            replies: The scores.
            comparisons: Number of comparisons that share the level of a part.
        """
        error = math.sqrt(sum(reply.error**2 for reply in replies))
        if not error:
            return self.rounding(*replies)
        tail = self.level / (2 * max(comparisons, 1))
        return self.rounding(*replies) - error * float(ndtri(tail))

    @cached_property
    def spaced(self) -> bool:
        """Whether texts have several words.

        Otherwise scorers of more than words are tested on characters.
        """
        of_words = self.kind in (Kind.TOKENS, Kind.WORDS)
        return of_words or any(map(word_ends, self.texts))

    def cuts(self, text: str) -> list[int]:
        """Return where a text can be cut: after words, or else anywhere."""
        return word_ends(text) if self.spaced else inside_words(text)

    def places(self, number: int, rng: np.random.Generator) -> list[Pair]:
        """Cut texts into contexts and what follows; those without a cut are left out.

        No context is empty: what a scorer puts before a text, it may not put before one
        that is a context.
        """
        splittable = [text for text in self.texts if self.cuts(text)]
        pairs = []
        for _ in range(number if splittable else 0):
            text = splittable[int(rng.integers(len(splittable)))]
            cuts = self.cuts(text)
            cut = cuts[int(rng.integers(len(cuts)))]
            pairs.append((text[:cut], text[cut:]))
        return pairs

    @cached_property
    def words(self) -> list[str]:
        """The words of the texts, or their characters, the most frequent first.

        They have no marks around them.
        """
        texts = self.texts if self.spaced else map(" ".join, self.texts)
        counts = Counter(
            word.strip(string.punctuation) or word
            for text in texts
            for word in text.split()
        )
        return [word for word, _ in counts.most_common()]

    def after(self, context: str) -> list[str]:
        """Return words as they follow a context."""
        space = " " if context and self.spaced else ""
        return [f"{space}{word}" for word in self.words]

    def contexts(self, rng: np.random.Generator) -> list[Pair]:
        """Return contexts of lists, with the rest of the text that each begins.

        They are words; without a given list the first is empty.
        """
        places = self.places(self.plan.contexts, rng)
        if self.options and places:
            return places
        return [("", self.texts[0]), *places[1:]]

    def written(
        self, context: str, number: int, *, sample: bool = True
    ) -> list[str] | None:
        """Return what the backend itself writes next, a number of times.

        That is a token or a word; of strings the first characters, which may be written
        in several ways. Empty is what tells nothing of scores: the end of a text, a
        part of a character, and of tokens what may be one with the context's last. A
        space that backends strip from what follows a word is put back.

        Returns:
            None if it writes nothing, or more than the answer that it scores.
        """
        if self.kind is Kind.ANSWERS:
            return None
        strings = self.kind is Kind.STRINGS
        tokens = 4 * CHARACTERS if strings else 1  # of four bytes at most
        texts = self.ask.write(context, number, tokens=tokens, sample=sample)
        if texts is None:
            return None
        if context and self.spaced and not any(text[:1].isspace() for text in texts):
            texts = [f" {text}" if text else text for text in texts]
        if strings:
            texts = [t[:CHARACTERS] if len(t) >= CHARACTERS else "" for t in texts]
        merges = bool(context) and self.spaced and self.kind is Kind.TOKENS
        return [
            "" if "\ufffd" in text or (merges and text[:1].isalnum()) else text
            for text in texts
        ]

    def listed(
        self,
        context: str,
        rest: str = "",
        written: Sequence[str] = (),
        rng: np.random.Generator | None = None,
    ) -> Scored:
        """Ask for options after a context, of which at most one can be true.

        The list that was given; else what the backend has written, the most frequent
        first, what a text goes on with, and words of the texts. Of two options that may
        both be true, since one begins with the other, the more probable one stays.

        Args:
            context: It ends where a word does.
            rest: Continuation of the context in its text.
            written: Continuations that the backend wrote there.
            rng: Generator that chooses among too many words; None: the first.
        """
        if self.options:
            options, least = [*self.options], 0
        else:
            cut = next(iter(self.cuts(rest)), len(rest))
            frequent = [text for text, _ in Counter(written).most_common() if text]
            own = [o for o in [*frequent, rest[:cut]] if o][: self.plan.width]
            options = self._apart([*own, *self.after(context)])
            least = len(self._apart(own))
        if len(options) > self.plan.width and not self.complete:
            others = options[least:]
            chosen: Sequence[int] = range(self.plan.width - least)
            if rng is not None:
                chosen = sorted(rng.permutation(len(others))[: len(chosen)].tolist())
            options = [*options[:least], *(others[n] for n in chosen)]
        scored = self.score_options(context, options)
        if self.options:
            return scored
        # No word of a vocabulary is the beginning of another, but unknown ones are one.
        return told_apart(scored) if self.kind is Kind.WORDS else exclusive(scored)

    def _apart(self, options: Sequence[str]) -> list[str]:
        """Leave out options that are given twice; of words, white space is no part."""
        if self.kind is not Kind.WORDS:
            return [*dict.fromkeys(options)]
        words: dict[str, str] = {}
        for option in options:
            word = option.strip()
            bare = word.strip(string.punctuation) or word
            words.setdefault(bare, option.replace(word, bare))
        return [*words.values()]

    def score_options(self, context: str, options: Sequence[str]) -> Scored:
        """Ask for continuations of one context."""
        pairs = [(context, option) for option in options]
        return [*zip(pairs, self.ask.score(pairs), strict=True)]


def request(pair: Pair, reply: Reply) -> dict[str, object]:
    """Return a request with its answer, as witnesses have it."""
    answer: dict[str, object] = {"log_p": reply.log_p}
    if reply.stderr is not None:
        answer["stderr"] = reply.stderr
    return {"context": pair[0], "continuation": pair[1], **answer}
