"""Which estimator spends the budget of a text, and how large the budget is.

A pilot decides where there is something to decide. It has random numbers of its own, so
given its decision an estimate from fresh draws is unbiased, and its bound and
certificate hold. The decision follows from the text, the settings and the seed alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from torch import Tensor

from lm_latent_eval.arguments import one_of
from lm_latent_eval.estimators import (
    effective_sample_size,
    log_evidence,
    required_num_samples,
)
from lm_latent_eval.inference import (
    Estimator,
    ImportanceSampling,
    Mixed,
    ParticleFilter,
    estimator_named,
)
from lm_latent_eval.inference.few import FEWEST
from lm_latent_eval.inference.models import Sampler
from lm_latent_eval.inference.smc import FILTERS
from lm_latent_eval.scoring.cost import announce
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.texts import Text, naming

Weigh: TypeAlias = Callable[[Estimator, list[Text], str], Iterator[tuple[Text, Tensor]]]
"""Weighs texts by an estimator, with random numbers for a purpose."""
Spending: TypeAlias = Iterator[tuple[Estimator, list[Text]]]
"""Estimators, each with the texts that it is for."""

SHORT = 64
"""Words of a text that is mixed without a pilot."""
PILOT = 5
"""One in so many evaluations decides how the others are spent."""
EVEN = 0.5
"""Share of a pilot's draws that they are worth, below which filters take over."""
FOUND = 0.1
"""Share of p(x) that a pilot's search finds, below which all the rest is drawn."""
UNSEEN = 0.1
"""Share of p(x) that draws are likely to miss, above which a text is scored anew."""
MORE = 4
"""With so many times as many draws. A search that reads ahead looks for as many of a
short text from the start."""
FEWEST_PARTICLES = 10 * FEWEST
"""Fewer do not tell how much filters vary."""


class Budget(Protocol):
    """How the samples of texts are spent."""

    @property
    def method(self) -> Estimator:
        """The estimator of contexts and continuations, and of pilots."""
        ...

    def pilot(self, text: Text) -> int:
        """Return how many evaluations of p decide on a text's others."""
        ...

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Say by which estimator each text is scored."""
        ...

    def instead(self, method: Estimator, log_w: Tensor) -> Estimator | None:
        """Return what a text is scored anew by, if its weights ask for it."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same estimator for every text."""

    method: Estimator
    """It also reads contexts and continuations."""

    def pilot(self, text: Text) -> int:
        """Return how many evaluations of p decide on a text's others: none."""
        return 0

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Give every text the same."""
        _announce([(self.method, texts)])
        yield self.method, texts

    def instead(self, method: Estimator, log_w: Tensor) -> None:
        """Return what a text is given instead of what it was: nothing."""


@dataclass(frozen=True)
class Target:
    """As many draws as the standard error wanted takes."""

    method: ImportanceSampling | Mixed
    """The pilot."""
    stderr: float
    """Wanted of a query's log-likelihood, nats."""
    most: int
    """Samples of a text."""

    def pilot(self, text: Text) -> int:
        """Return how many evaluations of p decide on a text's others."""
        return self.method.num_samples

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Give every text what its pilot asks for."""
        _announce([(self.method, texts)], kept=False)
        groups: dict[int, list[Text]] = {}
        sentences = Counter(text.query.index for text in texts)
        for text, log_w in weigh(self.method, texts, "pilot"):
            # Errors of independent sentences add in squares.
            share = self.stderr / math.sqrt(sentences[text.query.index])
            with naming(text.query):
                number = self._required(log_w, share)
            # Powers of two, so that texts still share batches.
            rounded = min(1 << (number - 1).bit_length(), self.most)
            groups.setdefault(rounded, []).append(text)
        chosen = [
            (replace(self.method, num_samples=number), group)
            for number, group in sorted(groups.items())
        ]
        _announce(chosen)
        yield from chosen

    def instead(self, method: Estimator, log_w: Tensor) -> None:
        """Return what a text is given instead of what it was: nothing."""

    def _required(self, log_w: Tensor, stderr: float) -> int:
        """Return K: what is drawn, and as much again where half of K is searched."""
        drawn = self.method.unbiased(log_w)
        number = int(required_num_samples(drawn, stderr, maximum=self.most))
        return min(number * (1 + isinstance(self.method, Mixed)), self.most)


@dataclass(frozen=True)
class Auto:
    """Search and draws, draws alone, or filters, as the pilot of a long text says.

    The pilot is mixed, with a fifth of the budget. Where its draws, with what was
    found, are worth less than ``EVEN`` of their number, the rest goes to filters: they
    lose less on long texts, of which no draw is good from beginning to end. Where the
    search found less than ``FOUND`` of the estimate, it is not asked again.

    A short text is mixed. Where a fifth of its draws and the search say that the others
    are likely to miss more than ``UNSEEN`` of p(x), it is scored anew with ``MORE``
    times as many samples: 2K are drawn, and 2K are searched for.

    A search that reads ahead looks for 2K at once, beside the K/2 draws: it finds what
    a narrower one and its draws miss together, and never tell of. It costs less than in
    proportion to its width; other searches cost twice as much, and find little more.
    """

    num_samples: int
    """K of a text, its pilot included; twice the draws of a short one."""
    filters: bool
    """Whether model and proposal can be filtered."""
    searcher: Sampler[object] | None = None
    """The proposal that searches go by, if it is not the one that is drawn from."""
    wide: bool = False
    """Whether searches read ahead."""

    @property
    def method(self) -> Estimator:
        """Search and draws, which also read contexts and continuations."""
        if self.num_samples == 1:
            return ImportanceSampling(1)
        return Mixed(self.num_samples, self.searcher)

    def _mixed(self, text: Text) -> Estimator:
        """Say what a text without a pilot is given; some of its draws are one."""
        method = self.method
        if not isinstance(method, Mixed):
            return method
        drawn = method.sampling.num_samples
        if self.wide and len(text.words) <= SHORT:
            method = replace(method, num_samples=(1 + MORE) * drawn, drawn=drawn)
        return replace(method, pilot=drawn // PILOT)

    def pilot(self, text: Text) -> int:
        """Return how many evaluations of p decide on a text's others."""
        spent = self.num_samples // PILOT
        few = self.num_samples - spent < FEWEST_PARTICLES
        return 0 if few or not self.filters or len(text.words) <= SHORT else spent

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Give short texts to ``Mixed``, and long ones as their pilots say."""
        long = [text for text in texts if self.pilot(text)]
        mixed: dict[Estimator, list[Text]] = {}
        for text in texts:
            if not self.pilot(text):
                mixed.setdefault(self._mixed(text), []).append(text)
        _announce([*mixed.items(), (self.method, long)])
        yield from mixed.items()
        if not long:
            return
        pilot = Mixed(self.pilot(long[0]), self.searcher)
        rest = self.num_samples - pilot.num_samples
        particles = rest - rest % FILTERS
        groups: dict[Estimator, list[Text]] = {}
        for text, log_w in weigh(pilot, long, "pilot"):
            draws = pilot.unbiased(log_w)
            worth = effective_sample_size(draws) / len(draws)
            found = (pilot.bound(log_w) - log_evidence(draws)).exp()
            method: Estimator
            if worth < EVEN:
                method = ParticleFilter(particles)
            elif found < FOUND:
                method = ImportanceSampling(rest)
            else:
                method = Mixed(rest, self.searcher)
            groups.setdefault(method, []).append(text)
        yield from groups.items()

    def instead(self, method: Estimator, log_w: Tensor) -> Mixed | None:
        """Return what a text is given instead of what it was, if anything.

        More draws, where so few are likely to miss much of p(x). It does not look at
        the draws that the estimate uses.
        """
        if not isinstance(method, Mixed):
            return None
        unseen = method.unseen(log_w)
        if unseen is None or unseen <= UNSEEN:
            return None
        drawn = MORE * method.sampling.num_samples
        return replace(method, num_samples=2 * drawn, drawn=None, pilot=0)


def budget_of(
    options: ScoringOptions,
    offered: Sequence[str],
    *,
    filters: bool,
    searcher: Sampler[object] | None = None,
    wide: bool = False,
) -> Budget:
    """Return how the samples of a text are spent.

    Args:
        options: Whose estimator is chosen.
        offered: The estimators that a model names.
        filters: Whether model and proposal can be filtered.
        searcher: The proposal that searches go by; None is the one drawn from.
        wide: Whether they read ahead.

    Raises:
        ValueError: If there is no such estimator, it cannot divide the samples, or has
            no error to aim at.
    """
    number, target = options.num_samples, options.target_stderr
    name, auto = (
        options.estimator or offered[0],
        Auto(number, filters, searcher, wide),
    )
    if name == "auto":
        one_of("estimator", name, offered)
        method: Estimator = auto.method
    else:
        method = estimator_named(name, offered)(number)
        if isinstance(method, Mixed):
            method = replace(method, searcher=searcher)
    if target is None:
        return auto if name == "auto" else Fixed(method)
    if not isinstance(method, ImportanceSampling | Mixed):
        raise ValueError(
            f"target_stderr needs estimator=is or mixed: estimator={name} has no Monte "
            "Carlo error to aim at"
        )
    return Target(method, target, options.max_samples)


def _announce(
    groups: Sequence[tuple[Estimator, list[Text]]], *, kept: bool = True
) -> None:
    """Say what estimators will take for the texts that they are for, if it is much."""
    words = [(method, [len(text.words) for text in some]) for method, some in groups]
    announce(words, kept=kept)
