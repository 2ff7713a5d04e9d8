"""A topic model that is small enough to list the topics of every word."""

from __future__ import annotations

from itertools import product

import torch

from lm_latent_eval.models.lda.modeling import LDA, LDAConfig

TOPICS, WORDS = 3, 6


def lda() -> LDA:
    """A topic model in float64; the laws take an end for a word like any other."""
    config = LDAConfig(vocab_size=WORDS, num_topics=TOPICS, never_uttered=[0, 2])
    model = LDA(config).double().eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    model.log_topics.copy_(torch.randn(TOPICS, WORDS, generator=draw) * 1.5)
    model.log_alpha.copy_(torch.tensor([0.3, 0.8, 1.5]).log())
    return model


def every_topic(length: int) -> torch.Tensor:
    """Every latent of a text, (1, K, T)."""
    return torch.tensor([list(product(range(TOPICS), repeat=length))])
