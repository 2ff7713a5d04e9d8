r"""A hidden Markov model over words: one latent state a word.

.. math:: p(x, z) = \prod_t p(z_t \mid z_{t-1}) \, p(x_t \mid z_t)

The first state is drawn from the last row of ``transitions``, that of S, the place
before all text. The end of a text is a word like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

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


class HMMConfig(WordsConfig):
    """Words, and states of a word."""

    model_type = "hmm"
    num_states: int = value(2, Whole(1))


class Read(NamedTuple):
    """What no walk through the states changes."""

    log_z: Tensor
    """log p(z_t | z_{t-1}), (S + 1, S)."""
    log_x: Tensor
    """log p(x_t | z_t) of every state, (B, T, S)."""
    log_rest: Tensor
    """log p(the words after x_t | z_t), (B, T, S): the backward algorithm."""


class HMM(StepLM):
    """p(x, z) of a hidden Markov model."""

    config_class = HMMConfig
    config: HMMConfig
    base_model_prefix = "hmm"
    main_input_name = "inputs"

    def __init__(self, config: HMMConfig) -> None:
        """Start from equal scores."""
        super().__init__(config)
        states = config.num_states
        self.transitions = nn.Parameter(torch.zeros(states + 1, states))
        self.emissions = nn.Parameter(torch.zeros(states, config.vocab_size))
        self.post_init()

    def log_emissions(self) -> Tensor:
        """Return log p(x_t | z_t), (S, V); padding and the start are no words."""
        never = torch.tensor([PADDING, START], device=self.device)
        scores = widened(self.emissions).index_fill(-1, never, -torch.inf)
        return scores.log_softmax(-1)

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Read:
        """Look up the words, and sum over the states ahead."""
        log_z = widened(self.transitions).log_softmax(-1)
        words, cost = batch.uttered(self.config.vocab_size)
        log_x = self.log_emissions().T[words] + cost[..., None]
        log_x = log_x.masked_fill(~batch.inside[..., None], 0.0)
        log_rest = torch.zeros_like(log_x)
        for t in reversed(range(log_x.shape[1] - 1)):
            ahead = log_x[:, t + 1] + log_rest[:, t + 1]
            log_rest[:, t] = (log_z[:-1] + ahead[:, None]).logsumexp(-1)
        return Read(log_z, log_x, log_rest)

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the place before all text."""
        return (torch.full_like(batch.length[:, None], self.config.num_states),)

    def step(self, read: Read, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the states of token t, given the one before."""
        (last,) = state
        states = torch.arange(self.config.num_states, device=last.device)
        log_x, log_rest = read.log_x[:, None, t], read.log_rest[:, None, t]
        return Step(read.log_z[last], log_x, log_rest, key=states)

    def take(
        self, read: Read, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Return the state of token t."""
        return (choice,)

    def log_words(self, read: Read, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p of every next word, (B, K, number of words)."""
        (last,) = state
        return (read.log_z[last][..., None] + self.log_emissions()).logsumexp(-2)
