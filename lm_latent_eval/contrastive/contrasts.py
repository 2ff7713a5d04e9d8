"""Contrastive entropies of a text, from the log-scores of its sentences and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor

from lm_latent_eval.contrastive import Rate, mean_entropy, mean_ratio


class Contrast(TypedDict):
    """The log-scores of a sentence and of its copies at one level, in nats."""

    words: int
    """What a rate per word counts of this sentence."""
    clean: float
    """Of the sentence itself."""
    stderr: float
    """Its Monte Carlo error, nats; ``inf`` where that of the sentence, or of one of its
    copies, is not known."""
    distorted: list[float]
    """Of its copies at this level, one a replicate."""
    baseline: list[float]
    """Of its copies at the level that ratios are over, one a replicate."""


def bits_per_word(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive entropy per word, the mean of its replicates.

    Its standard error is over replicates of the noise where there are several, so of
    this text; with one it is over sentences, so of texts like this. What the draws of
    latents add is in both, and where it is not known they are infinite.
    """
    words = torch.tensor([contrast["words"] for contrast in contrasts])
    return _bits(contrasts, words)


def bits_per_sentence(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive entropy per sentence, with the error of bits per word."""
    return _bits(contrasts, torch.ones(len(contrasts), dtype=torch.long))


def ratio(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive ratio: of the mean entropies at a level and the baseline.

    Its standard error is over replicates where there are several, else over sentences.

    Raises:
        ValueError: If the model prefers the baseline's copies to the text.
    """
    clean, distorted = _log_scores(contrasts, "distorted")
    _, baseline = _log_scores(contrasts, "baseline")
    return mean_ratio(clean, distorted, baseline, _stderrs(contrasts)).rate()


def _bits(contrasts: Sequence[Contrast], units: Tensor) -> Rate:
    clean, distorted = _log_scores(contrasts, "distorted")
    found = mean_entropy(clean, distorted, units, _stderrs(contrasts))
    return found.bits().rate()


def _stderrs(contrasts: Sequence[Contrast]) -> Tensor:
    return torch.tensor([c["stderr"] for c in contrasts], dtype=torch.float64)


def _log_scores(
    contrasts: Sequence[Contrast], copies: Literal["distorted", "baseline"]
) -> tuple[Tensor, Tensor]:
    """Return those of N sentences, (N,), and of their copies, (replicates, N)."""
    clean = torch.tensor([c["clean"] for c in contrasts], dtype=torch.float64)
    of_copies = torch.tensor([c[copies] for c in contrasts], dtype=torch.float64)
    return clean, of_copies.T
