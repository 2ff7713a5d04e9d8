"""Budget of texts: the samples of each, the estimator, and their cost.

A text's own K is chosen by a pilot with random numbers of its own: given that K an
estimate is unbiased, and its bound and certificate hold. The choice follows from the
text, the settings and the seed alone. A cost in evaluations and memory is announced if
large, and refused if too large.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import psutil
from torch import Tensor

from lm_latent_eval.estimators import required_num_samples
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
"""Minimum bytes of a latent's decision on a word, where it is held."""
CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""File in which Linux says how much memory a container may use."""


def announce(
    groups: Sequence[tuple[Estimator, Sequence[int]]],
    *,
    stepwise: bool = False,
    kept: bool = False,
) -> None:
    """Log the cost of a run before it starts, if it is large.

    Args:
        groups: Estimators, each with the number of words of every text it is for.
        stepwise: Whether texts continue, so that all latents are held at once.
        kept: Whether estimates are kept with their log-weights.

    Raises:
        ValueError: If there is not enough memory.
    """
    texts, evaluations, scored, memory, stored = 0, 0, 0, 0, 0
    for method, lengths in groups:
        latents = method.num_samples + method.beside
        texts += len(lengths)
        evaluations += latents * len(lengths)
        scored += latents * sum(lengths)
        # What is searched for is held; draws come in rounds, and filters go by tokens.
        held = latents if stepwise else method.held
        longest = min(max(lengths, default=0), PIECE)
        weights = latents * ESTIMATED * bool(lengths)
        memory = max(memory, int(weights + held * DECISION * longest))
        # Beams have no log-weights, and filters have few.
        stored += kept * method.kept * len(lengths) * KEPT
    memory += stored
    largest = max((method.num_samples for method, _ in groups), default=0)
    cost = (
        f"up to {largest:,} latents of {texts:,} text{'s' * (texts != 1)}: "
        f"{evaluations:,} evaluations of p(x, z), of {scored:,} words in all; "
        f"log-weights and latents take {_gigabytes(memory)} GB"
    )
    if memory > (available := machine_memory()):
        fewer = ", or score fewer texts at a time" if kept and texts > 1 else ""
        raise ValueError(
            f"{cost}, and there are {_gigabytes(available)} GB: draw fewer samples"
            f"{fewer}"
        )
    if scored >= MUCH:
        logger.warning("%s. Ctrl-C ends the run", cost)


def machine_memory() -> int:
    """Return the bytes of main memory, or how much of it a container may use."""
    memory: int = psutil.virtual_memory().total
    try:
        return min(memory, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return memory


def _gigabytes(memory: int) -> str:
    """Write bytes as gigabytes, in integers: numbers may be beyond any float."""
    return f"{memory // 10**9:,}.{memory // 10**8 % 10}"


Weigh: TypeAlias = Callable[[Estimator, list[Text], str], Iterator[tuple[Text, Tensor]]]
"""Weighs texts by an estimator, with random numbers for a purpose."""

ENDLESS = 1 << 60
"""More samples than anybody draws."""
FORESEEN = 64
"""``SearchedProposal.widening`` where it is known what words will cost, which leaves
most places of most texts empty."""
MIN_AUTO_SAMPLES = 20
"""Minimum K of ``auto``: fewer histories take as many seconds and miss more."""


@dataclass(frozen=True)
class Budget:
    """Samples of texts: as many each, or as a standard error takes."""

    method: Estimator
    """The estimator, or the pilot. It also reads contexts and continuations."""
    target_stderr: float | None = None
    """Standard error wanted of a query's log-likelihood, nats; None: K is given."""
    max_samples: int = 0
    """Upper limit of the samples that ``target_stderr`` chooses."""

    def spend(
        self, texts: list[Text], weigh: Weigh
    ) -> Iterator[tuple[Estimator, list[Text]]]:
        """Yield estimators, each with the texts whose pilots ask for its samples."""
        if self.target_stderr is None:
            announce([(self.method, _lengths(texts))], kept=True)
            yield self.method, texts
            return
        pilot = self.method
        assert isinstance(pilot, ImportanceSampling | Mixed)  # see ``budget_of``
        announce([(pilot, _lengths(texts))])
        groups: dict[int, list[Text]] = {}
        sentences = Counter(text.query.index for text in texts)
        short = 0
        for text, log_w in weigh(pilot, texts, "pilot"):
            # Errors of independent sentences add in squares.
            share = self.target_stderr / math.sqrt(sentences[text.query.index])
            with naming(text.query):
                num_samples = self._required(log_w, share)
            short += num_samples > self.max_samples
            # Powers of two, so that texts still share batches.
            rounded = min(1 << (num_samples - 1).bit_length(), self.max_samples)
            groups.setdefault(rounded, []).append(text)
        if short:
            logger.warning(
                "target_stderr=%g: %d of %d texts want more than max_samples=%d "
                "samples and have larger errors",
                self.target_stderr,
                short,
                len(texts),
                self.max_samples,
            )
        chosen: list[tuple[Estimator, list[Text]]] = [
            (replace(pilot, num_samples=num_samples), group)
            for num_samples, group in sorted(groups.items())
        ]
        announce([(method, _lengths(group)) for method, group in chosen], kept=True)
        yield from chosen

    def _required(self, log_w: Tensor, stderr: float) -> int:
        """Return K: the draws, and as many again where half of K is searched.

        The draws are those outside of the pilot's search, so that no search of
        ``mixed`` may be narrower.
        """
        drawn = self.method.unbiased(log_w)
        num_samples = int(required_num_samples(drawn, stderr, maximum=ENDLESS))
        if isinstance(self.method, Mixed):
            return max(2 * num_samples, self.method.num_samples)
        return num_samples


def budget_of(
    options: ScoringOptions,
    offered: Sequence[str],
    *,
    proposal: Proposal,
    searcher: Proposal | None = None,
) -> Budget:
    """Return the budget that options choose.

    Args:
        options: Options, among them the estimator.
        offered: The estimators that a model names.
        proposal: The proposal.
        searcher: The proposal that searches go by; None is the one drawn from.

    Raises:
        ValueError: If there is no such estimator, it cannot divide the samples, or has
            no error to aim at.
    """
    num_samples, target = options.num_samples, options.target_stderr
    name = options.estimator or offered[0]
    method: Estimator
    if name == "auto":
        one_of("estimator", name, offered)
        if isinstance(proposal, SearchedProposal) and target is None:
            histories = FORESEEN if proposal.foresees else proposal.widening
            if num_samples < MIN_AUTO_SAMPLES:
                _warn_of_minimum(num_samples)
            divided = -(-max(MIN_AUTO_SAMPLES, num_samples) // PASSES) * PASSES
            return Budget(DiscreteFilter(divided * histories))
        method = Mixed(max(2, num_samples), searcher)
    else:
        method = estimator_named(name, offered)(num_samples)
        if isinstance(method, Mixed):
            method = replace(method, searcher=searcher)
    if target is None:
        return Budget(method)
    if not isinstance(method, ImportanceSampling | Mixed):
        raise ValueError(
            f"target_stderr needs estimator=is or mixed: estimator={name} has no Monte "
            "Carlo error to aim at"
        )
    return Budget(method, target, options.max_samples)


@cache
def _warn_of_minimum(num_samples: int) -> None:
    """Warn, once a process, that more is drawn than K."""
    logger.warning(
        "num_samples=%d: estimator=auto takes at least %d",
        num_samples,
        MIN_AUTO_SAMPLES,
    )


def _lengths(texts: Sequence[Text]) -> list[int]:
    return [len(text.words) for text in texts]
