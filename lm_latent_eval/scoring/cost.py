"""Cost of a run in evaluations and memory: announced if large, refused if too large."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from lm_latent_eval.estimators import CorpusRate, Estimate, enough_samples
from lm_latent_eval.inference import Estimator
from lm_latent_eval.inference.particles import PIECE

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
    """Say what a run takes before it starts, if it is much.

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
        memory += sum(_keeping(*group) for group in groups)
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
    """Say how many samples a long run is worth, judged by some of its texts.

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


def _keeping(method: Estimator, words: Sequence[int]) -> int:
    """Bytes of the log-weights in all estimates; beams have none, filters have few."""
    return int(method.kept * len(words) * KEPT)


def _all(method: Estimator) -> int:
    """How many evaluations of p(x, z) a text takes."""
    return method.num_samples + method.beside


def _gigabytes(number: int) -> str:
    """Write bytes as gigabytes, in integers: numbers may be beyond any float."""
    return f"{number // 10**9:,}.{number // 10**8 % 10}"
