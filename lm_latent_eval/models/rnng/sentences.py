"""Sentence batches from batches of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, UNKNOWN


def known_words(config: RNNGConfig, ids: Tensor) -> Tensor:
    """Replace words that the model cannot utter by the unknown word."""
    return ids.masked_fill(ids >= config.vocab_size, UNKNOWN)


def ended(config: RNNGConfig, batch: TokenBatch) -> Tensor:
    """Say on the host which texts have their end word, (B,) bool.

    Raises:
        ValueError: If words follow an end.
    """
    if not config.sentence_ends:
        return torch.zeros(len(batch.length), dtype=torch.bool)
    targets, length = batch.on_host
    inside = torch.arange(targets.shape[1]) < length[:, None]
    is_end = (targets == END) & inside
    last = (length - 1).clamp_min(0)[:, None]
    at_last = is_end.gather(1, last)[:, 0]
    if bool((is_end.sum(-1) > at_last.long()).any()):
        raise ValueError(
            "words follow the end of a sentence: this model reads one sentence at a "
            "time, so split the text"
        )
    return at_last


def num_words(config: RNNGConfig, batch: TokenBatch) -> Tensor:
    """Count on the host the words of whole sentences, their end word aside, (B,).

    Raises:
        ValueError: If the model has sentence ends and a text lacks its own.
    """
    end = ended(config, batch)
    if config.sentence_ends and not bool(end.all()):
        raise ValueError(
            "a text without a sentence end has no whole trees: end it with the end "
            "word, or use a proposal that reads from left to right"
        )
    return batch.on_host[1] - end.long()
