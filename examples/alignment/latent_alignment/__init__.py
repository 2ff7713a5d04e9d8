r"""An alignment model of translation: which word of x each word of y is about.

.. math:: p(y, z \mid x) = \prod_t p(z_t \mid z_{t-1}, x) \, p(y_t \mid x_{z_t})

z_t is a place in x, or, before all of them, the empty word. A jump from one place to
another has a probability by its width, so this is a hidden Markov model whose states
are the words of x (Vogel, Ney and Tillmann, 1996); with the same score for every jump
it is IBM model 1. The end of a text is a word of y like any.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.extend import (
    PADDING,
    START,
    Step,
    StepLM,
    TokenBatch,
    Whole,
    WordsConfig,
    value,
    widened,
)

EMPTY = START
"""What stands for the empty word before x."""


class AlignmentConfig(WordsConfig):
    """Words of both languages; jumps beyond a width are not told apart."""

    model_type = "alignment"
    longest_jump: int = value(3, Whole(0))


class Read(NamedTuple):
    """What no alignment changes; S places, the empty word's first."""

    log_jump: Tensor
    """log p(z_t | z_{t-1}, x), (B, S, S)."""
    log_y: Tensor
    """log p(y | x_z) of every word at every place, (B, S, V)."""
    log_word: Tensor
    """log p(y_t | x_z), (B, T, S)."""


class Alignment(StepLM):
    """p(y, z | x) of words of y and their places in x."""

    config_class = AlignmentConfig
    config: AlignmentConfig
    base_model_prefix = "alignment"
    main_input_name = "inputs"
    conditional_on = "the sentence that is translated"

    def __init__(self, config: AlignmentConfig) -> None:
        """Start from equal scores."""
        super().__init__(config)
        size = config.vocab_size
        self.translations = nn.Parameter(torch.zeros(size, size))
        self.jumps = nn.Parameter(torch.zeros(2 * config.longest_jump + 1))
        self.post_init()

    def read(self, batch: TokenBatch) -> Read:
        """Look up the words of x, the jumps between them, and what they are in y."""
        given = batch.given
        x = F.pad(given.uttered(self.config.vocab_size)[0], (1, 0), value=EMPTY)
        places, most = torch.arange(x.shape[1], device=x.device), len(self.jumps) // 2
        jump = (places - places[:, None]).clamp(-most, most) + most
        outside = (places > given.length[:, None])[:, None]
        score = widened(self.jumps)[jump].masked_fill(outside, -torch.inf)
        never = torch.tensor([PADDING, START], device=x.device)
        scores = widened(self.translations).index_fill(-1, never, -torch.inf)
        log_y = scores.log_softmax(-1)[x]
        words, cost = batch.uttered(self.config.vocab_size)
        index = words[:, None].expand(-1, log_y.shape[1], -1)
        log_word = log_y.gather(2, index).mT + cost[..., None]
        return Read(score.log_softmax(-1), log_y, log_word)

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the place of the empty word."""
        return (torch.zeros_like(batch.length[:, None]),)

    def step(self, read: Read, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the places of word t, given that of the one before."""
        (last,) = state
        index = last[..., None].expand(-1, -1, read.log_jump.shape[2])
        return Step(read.log_jump.gather(1, index), read.log_word[:, None, t])

    def take(
        self, read: Read, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Return the place of word t."""
        return (choice,)

    def log_words(self, read: Read, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p of every next word, (B, K, number of words)."""
        log_z = self.step(read, state, 0).log_prior
        return (log_z[..., None] + read.log_y[:, None]).logsumexp(-2)
