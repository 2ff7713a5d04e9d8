"""Budget of texts: the estimator, its samples and their cost.

A cost in evaluations and memory is announced if large, and refused if too large.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil

from lm_latent_eval.inference import (
    DiscreteFilter,
    Estimator,
    estimator_named,
)
from lm_latent_eval.inference.discrete import PASSES
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.latent import Proposal
from lm_latent_eval.options import one_of
from lm_latent_eval.scoring.options import ScoringOptions

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
    method: Estimator,
    lengths: Sequence[int],
    *,
    stepwise: bool = False,
    kept: bool = False,
) -> None:
    """Log the cost of a run before it starts, if it is large.

    Args:
        method: The estimator.
        lengths: Number of words of every text.
        stepwise: Whether texts continue, so that all latents are held at once.
        kept: Whether estimates are kept with their log-weights.

    Raises:
        ValueError: If there is not enough memory.
    """
    latents, texts = method.num_samples + method.beside, len(lengths)
    scored = latents * sum(lengths)
    # What is searched for is held; draws come in rounds, and filters go by tokens.
    held = latents if stepwise else method.held
    longest = min(max(lengths, default=0), PIECE)
    memory = int(latents * ESTIMATED * bool(texts) + held * DECISION * longest)
    # Beams have no log-weights, and filters have few.
    memory += kept * method.kept * texts * KEPT
    cost = (
        f"up to {method.num_samples:,} latents of {texts:,} text{'s' * (texts != 1)}: "
        f"{latents * texts:,} evaluations of p(x, z), of {scored:,} words in all; "
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


MIN_AUTO_SAMPLES = 20
"""Minimum K of ``auto``: fewer histories take as many seconds and miss more."""


def method_of(
    options: ScoringOptions, offered: Sequence[str], proposal: Proposal
) -> Estimator:
    """Return the estimator that options choose, with its samples.

    Args:
        options: Options, among them the estimator.
        offered: The estimators that a model names.
        proposal: The proposal.

    Raises:
        ValueError: If there is no such estimator, or it cannot divide the samples.
    """
    num_samples, name = options.num_samples, options.estimator or offered[0]
    if name != "auto":
        return estimator_named(name, offered)(num_samples)
    one_of("estimator", name, offered)
    histories = proposal.widening if isinstance(proposal, SearchedProposal) else 1
    if num_samples < MIN_AUTO_SAMPLES:
        _warn_of_minimum(num_samples)
    divided = -(-max(MIN_AUTO_SAMPLES, num_samples) // PASSES) * PASSES
    return DiscreteFilter(divided * histories)


@cache
def _warn_of_minimum(num_samples: int) -> None:
    """Warn, once a process, that more is drawn than K."""
    logger.warning(
        "num_samples=%d: estimator=auto takes at least %d",
        num_samples,
        MIN_AUTO_SAMPLES,
    )
