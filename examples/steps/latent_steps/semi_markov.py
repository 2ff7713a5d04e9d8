"""A hidden semi-Markov model: states that last for several words.

A state lasts for D words at most, as its table of durations says. The choice of a word
is its state and how many words more that lasts: all is decided where a state begins.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

import lm_latent_eval.extend as lle

State = tuple[Tensor, ...]


class SemiMarkovConfig(lle.WordsConfig):
    """Sizes."""

    model_type = "semi_markov"
    num_states: int = lle.value(2, lle.Whole(1))
    longest: int = lle.value(3, lle.Whole(1))


class Read(NamedTuple):
    """What no choice changes."""

    log_z: Tensor  # log p(z_t | z_{t-1}) of states and words left, (S D + 1, S D)
    log_x: Tensor  # log p(x_t | z_t), (B, T, S D)


class SemiMarkov(lle.StepLM):
    """p(x, z): the state of each word, and how many words more it lasts."""

    config_class = SemiMarkovConfig
    main_input_name = "inputs"

    def __init__(self, config: SemiMarkovConfig) -> None:
        super().__init__(config)
        states = config.num_states
        self.moves = nn.Parameter(torch.zeros(states + 1, states))  # the start is last
        self.durations = nn.Parameter(torch.zeros(states, config.longest))
        self.emissions = nn.Parameter(torch.zeros(states, config.vocab_size))
        self.post_init()

    def log_emissions(self) -> Tensor:
        """Return log p of every word, (S D, V)."""
        scores = lle.widened(self.emissions).clone()
        scores[:, [lle.PADDING, lle.START]] = -torch.inf
        return scores.log_softmax(-1).repeat_interleave(self.config.longest, 0)

    def read(self, batch: lle.TokenBatch, recurrent: State) -> Read:
        size = self.config.longest
        moves = lle.widened(self.moves).log_softmax(-1)[..., None]
        begins = (moves + lle.widened(self.durations).log_softmax(-1)).flatten(1)
        log_z = torch.full_like(begins[0].diag(), -torch.inf)
        log_z[::size] = begins[:-1]  # after a state with no word left
        left = torch.arange(len(log_z), device=self.device)
        left = left[left % size > 0]
        log_z[left, left - 1] = 0.0
        words, cost = batch.uttered(self.config.vocab_size)
        log_x = self.log_emissions().T[words] + cost[..., None]
        return Read(torch.cat([log_z, begins[-1:]]), log_x)

    def begin(self, batch: lle.TokenBatch) -> State:
        start = self.config.num_states * self.config.longest
        return (torch.full_like(batch.length[:, None], start),)

    def step(self, read: Read, state: State, t: int) -> lle.Step:
        key = torch.arange(read.log_z.shape[1], device=self.device)
        return lle.Step(read.log_z[state[0]], read.log_x[:, None, t], key=key)

    def take(self, read: Read, state: State, choice: Tensor, t: int) -> State:
        return (choice,)

    def log_words(self, read: Read, state: State) -> Tensor:
        return (read.log_z[state[0]][..., None] + self.log_emissions()).logsumexp(-2)
