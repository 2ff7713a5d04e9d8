"""Budget of texts: how many samples each gets, by which estimator, and what that costs.

Where a text decides, it is by a pilot with random numbers of its own: so given the
decision an estimate is unbiased, and its bound and certificate hold. The decision
follows from the text, the settings and the seed alone.
A cost in evaluations and memory is announced if large, and refused if too large.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeAlias

import psutil
import torch
from torch import Tensor

from lm_latent_eval.estimators import (
    CorpusRate,
    Estimate,
    enough_samples,
    required_num_samples,
)
from lm_latent_eval.inference import (
    DiscreteFilter,
    Estimator,
    ImportanceSampling,
    Mixed,
    estimator_named,
)
from lm_latent_eval.inference.discrete import PASSES
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.latent import Proposal
from lm_latent_eval.options import one_of
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.texts import Text, naming

logger = logging.getLogger(__name__)

MUCH = 10**8
"""Words scored (words x latents) that take minutes at least."""
ESTIMATED, KEPT = 88, 8
"""Bytes that a log-weight takes while its text is estimated, and in an ``Estimate``."""
DECISION = 16
"""Bytes, at least, of what a latent decides on a word, where it is held."""
CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container may use."""


def announce(
    groups: Sequence[tuple[Estimator, Sequence[int]]],
    *,
    stepwise: bool = False,
    kept: bool = False,
) -> None:
    """Log the cost of a run before it starts, if it is large.

    Args:
        groups: Estimators, each with the number of words of every text it is for.
        stepwise: Whether texts are gone on with, so that all latents are held at once.
        kept: Whether estimates are kept with their log-weights.

    Raises:
        ValueError: If there is not enough memory.
    """
    texts = sum(len(words) for _, words in groups)
    evaluations = sum(_all(method) * len(words) for method, words in groups)
    scored = sum(_all(method) * sum(words) for method, words in groups)
    memory = max((_estimating(*group, stepwise) for group in groups), default=0)
    if kept:
        # Beams have no log-weights, and filters have few.
        memory += sum(method.kept * len(words) * KEPT for method, words in groups)
    most = max((method.num_samples for method, _ in groups), default=0)
    cost = (
        f"up to {most:,} latents of {texts:,} text{'s' * (texts != 1)}: "
        f"{evaluations:,} evaluations of p(x, z), of {scored:,} words in all; "
        f"log-weights and latents take {_gigabytes(memory)} GB"
    )
    if memory > (there_is := machine_memory()):
        fewer = ", or score fewer texts at a time" if kept and texts > 1 else ""
        raise ValueError(
            f"{cost}, and there are {_gigabytes(there_is)} GB: draw fewer samples"
            f"{fewer}"
        )
    if scored >= MUCH:
        logger.warning("%s. Ctrl-C ends the run", cost)


def recommend(few: Sequence[Estimate], texts: int) -> None:
    """Log how many samples are worth while, judged by some texts of a long run.

    Args:
        few: Estimates of some texts, by draws.
        texts: How many the run has.
    """
    rate = CorpusRate.nats(few, torch.tensor([e.num_tokens for e in few]))
    spread = math.hypot(*(e.log_evidence + rate.value * e.num_tokens for e in few))
    drawn = math.hypot(*(e.draws_stderr for e in few))
    if not (0 < drawn < math.inf and spread > 0):
        return
    number = enough_samples(few[0].num_samples, drawn, spread)
    logger.warning(
        "%d of %s texts say: with num_samples=%d the draws' error is a fifth of that "
        "over texts, and more samples hardly make ± smaller",
        len(few),
        f"{texts:,}",
        number,
    )


def is_much(method: Estimator, words: Sequence[int]) -> bool:
    """Whether scoring takes minutes at least."""
    return bool(_all(method) * sum(words) >= MUCH)


def machine_memory() -> int:
    """Return the bytes of main memory, or how much of it a container may use."""
    memory: int = psutil.virtual_memory().total
    try:
        return min(memory, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return memory


def _estimating(method: Estimator, words: Sequence[int], stepwise: bool) -> int:
    """Bytes that the longest text's log-weights and latents take, at least."""
    # What is searched for is held; draws come in rounds, and filters go by tokens.
    held = _all(method) if stepwise else method.held
    longest = min(max(words, default=0), PIECE)
    weights = _all(method) * ESTIMATED * bool(words)
    return int(weights + held * DECISION * longest)


def _all(method: Estimator) -> int:
    """How many evaluations of p(x, z) a text takes."""
    return method.num_samples + method.beside


def _gigabytes(number: int) -> str:
    """Write bytes as gigabytes, in integers: numbers may be beyond any float."""
    return f"{number // 10**9:,}.{number // 10**8 % 10}"


Weigh: TypeAlias = Callable[[Estimator, list[Text], str], Iterator[tuple[Text, Tensor]]]
"""Weighs texts by an estimator, with random numbers for a purpose."""
Spending: TypeAlias = Iterator[tuple[Estimator, list[Text]]]
"""Estimators, each with the texts that it is for."""

ENDLESS = 1 << 60
"""More samples than anybody draws."""
FORESEEN = 64
"""``SearchedProposal.widening`` where it is known what words will cost, which leaves
most places of most texts empty."""
LEAST = 20
"""The least K of ``auto``: fewer histories take as many seconds and miss more."""


@dataclass(frozen=True)
class Fixed:
    """The same estimator for every text."""

    pilot: ClassVar[int] = 0
    method: Estimator
    """It also reads contexts and continuations."""

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Yield the estimator with the texts."""
        _announce([(self.method, texts)])
        yield self.method, texts


@dataclass(frozen=True)
class Target:
    """As many draws as the standard error wanted takes."""

    method: ImportanceSampling | Mixed
    """The pilot. It also reads contexts and continuations."""
    stderr: float
    """Wanted of a query's log-likelihood, nats."""
    most: int
    """Samples of a text."""

    @property
    def pilot(self) -> int:
        """Evaluations of p(x, z) that decide on a text's others."""
        return self.method.num_samples

    def spend(self, texts: list[Text], weigh: Weigh) -> Spending:
        """Yield estimators, each with the texts whose pilots ask for its samples."""
        _announce([(self.method, texts)], kept=False)
        groups: dict[int, list[Text]] = {}
        sentences = Counter(text.query.index for text in texts)
        short = 0
        for text, log_w in weigh(self.method, texts, "pilot"):
            # Errors of independent sentences add in squares.
            share = self.stderr / math.sqrt(sentences[text.query.index])
            with naming(text.query):
                number = self._required(log_w, share)
            short += number > self.most
            # Powers of two, so that texts still share batches.
            rounded = min(1 << (number - 1).bit_length(), self.most)
            groups.setdefault(rounded, []).append(text)
        if short:
            logger.warning(
                "target_stderr=%g: %d of %d texts want more than max_samples=%d "
                "samples and have larger errors",
                self.stderr,
                short,
                len(texts),
                self.most,
            )
        chosen = [
            (replace(self.method, num_samples=number), group)
            for number, group in sorted(groups.items())
        ]
        _announce(chosen)
        yield from chosen

    def _required(self, log_w: Tensor, stderr: float) -> int:
        """Return K: what is drawn, and as much again where half of K is searched.

        The draws are those outside of the pilot's search, so that no search of
        ``mixed`` may be narrower.
        """
        drawn = self.method.unbiased(log_w)
        number = int(required_num_samples(drawn, stderr, maximum=ENDLESS))
        if isinstance(self.method, Mixed):
            number = max(2 * number, self.method.num_samples)
        return number


Budget: TypeAlias = Fixed | Target
"""How the samples of texts are spent."""


def budget_of(
    options: ScoringOptions,
    offered: Sequence[str],
    *,
    proposal: Proposal,
    searcher: Proposal | None = None,
) -> Budget:
    """Return the budget that options choose.

    Args:
        options: Whose estimator is chosen.
        offered: The estimators that a model names.
        proposal: The proposal.
        searcher: The proposal that searches go by; None is the one drawn from.

    Raises:
        ValueError: If there is no such estimator, it cannot divide the samples, or has
            no error to aim at.
    """
    number, target = options.num_samples, options.target_stderr
    name = options.estimator or offered[0]
    method: Estimator
    if name == "auto":
        one_of("estimator", name, offered)
        if isinstance(proposal, SearchedProposal) and target is None:
            histories = FORESEEN if proposal.foresees else proposal.widening
            if number < LEAST:
                _warn_of_least(number)
            divided = -(-max(LEAST, number) // PASSES) * PASSES
            return Fixed(DiscreteFilter(divided * histories))
        method = Mixed(max(2, number), searcher)
    else:
        method = estimator_named(name, offered)(number)
        if isinstance(method, Mixed):
            method = replace(method, searcher=searcher)
    if target is None:
        return Fixed(method)
    if not isinstance(method, ImportanceSampling | Mixed):
        raise ValueError(
            f"target_stderr needs estimator=is or mixed: estimator={name} has no Monte "
            "Carlo error to aim at"
        )
    return Target(method, target, options.max_samples)


@cache
def _warn_of_least(number: int) -> None:
    """Say, once a process, that more is drawn than was asked for."""
    logger.warning("num_samples=%d: estimator=auto takes at least %d", number, LEAST)


def _announce(
    groups: Sequence[tuple[Estimator, list[Text]]], *, kept: bool = True
) -> None:
    """Log the cost of estimators for their texts, if it is large."""
    words = [(method, [len(text.words) for text in some]) for method, some in groups]
    announce(words, kept=kept)
