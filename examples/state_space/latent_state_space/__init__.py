r"""A linear Gaussian state-space model of whole numbers: one real latent a word.

.. math:: z_t = a z_{t-1} + \epsilon_t, \qquad x_t \approx z_t + \eta_t

A text is the readings of a sensor, ``17 19 18 22``. What is read is z_t and normal
noise, as the nearest whole number has it: p(x_t | z_t) is the normal density at x_t.
Over all whole numbers those total one to 1e-9, as the noise is wider than one; those
that are not in the vocabulary are what the model loses. A text ends after each word
with a fixed probability, and an unknown word or an end says nothing of z.

Given the model is linear and Gaussian, a Kalman filter has the exact p(x).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

from lm_latent_eval.extend import (
    END,
    UNKNOWN,
    Normalization,
    RealStep,
    RealStepLM,
    TokenBatch,
    Whole,
    WordsConfig,
    value,
    widened,
)

KINDS = (END, UNKNOWN)
"""Words that are no reading: their probabilities come first, the readings' last."""


class StateSpaceConfig(WordsConfig):
    """Words: four marks, then the whole numbers from ``lowest`` upwards."""

    model_type = "state_space"
    lowest: int = value(0, Whole(0))


class Read(NamedTuple):
    """What no latent changes."""

    kind: Tensor
    """log p of an end, of an unknown word or of some reading, (B, T)."""
    reading: Tensor
    """x_t, (B, T); NaN where it is none."""


class StateSpace(RealStepLM):
    """p(x, z) of a linear Gaussian state-space model."""

    config_class = StateSpaceConfig
    config: StateSpaceConfig
    base_model_prefix = "state_space"
    main_input_name = "inputs"
    normalization = Normalization.BELOW_ONE

    def __init__(self, config: StateSpaceConfig) -> None:
        """Start from a slow process in the middle of the numbers."""
        super().__init__(config)
        middle = config.lowest + (config.vocab_size - 5) / 2
        self.level = nn.Parameter(torch.tensor(middle))
        self.keeps = nn.Parameter(torch.tensor(0.9))
        self.log_scale = nn.Parameter(torch.zeros(2))
        self.kinds = nn.Parameter(torch.tensor([-2.0, -4.0, 0.0]))
        self.post_init()

    @property
    def scales(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of what moves z and of what is read, both above one."""
        moving, reading = (1 + F.softplus(widened(self.log_scale))).unbind()
        return moving, reading

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Read:
        """Look the words up."""
        words, cost = batch.uttered(self.config.vocab_size)
        log_kind = widened(self.kinds).log_softmax(-1)
        kind = log_kind[2].expand(words.shape)
        for n, word in enumerate(KINDS):
            kind = torch.where(words == word, log_kind[n], kind)
        number = widened(words - 4 + self.config.lowest)
        return Read(kind + cost, number.masked_fill(words < 4, math.nan))

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return z before all text."""
        return (widened(self.level).expand(len(batch.length), 1),)

    def moved(self, z: Tensor) -> Normal:
        """Return p(z_t | z_{t-1}), (B, K, 1)."""
        level = widened(self.level)
        mean = level + widened(self.keeps) * (z - level)
        return Normal(mean[..., None], self.scales[0], validate_args=False)

    def step(self, read: Read, state: tuple[Tensor, ...], t: int) -> RealStep:
        """Return p(z_t | z_{t-1}), and p(z_t | z_{t-1}, x_t) to draw from."""
        prior, reading = self.moved(*state), read.reading[:, None, t, None]
        share = (
            prior.scale / self.scales[1]
        ) ** 2  # precision of x_t beside that of z_t
        share = torch.where(reading.isnan(), 0.0, share / (1 + share))
        mean = prior.loc + share * (reading.nan_to_num() - prior.loc)
        scale = prior.scale * (1 - share).sqrt()
        return RealStep(prior, Normal(mean, scale, validate_args=False))

    def log_word(
        self, read: Read, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> Tensor:
        """Return log p(x_t | z_t), (B, K)."""
        reading = read.reading[:, None, t]
        noise = Normal(z[..., 0], self.scales[1], validate_args=False)
        log_p = noise.log_prob(reading.nan_to_num()).masked_fill(reading.isnan(), 0.0)
        return read.kind[:, None, t] + log_p

    def take(
        self, read: Read, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Return z_t."""
        return (z[..., 0],)

    def log_words(self, read: Read, state: tuple[Tensor, ...], z: Tensor) -> Tensor:
        """Return log p of every next word, (B, K, number of words)."""
        log_kind = widened(self.kinds).log_softmax(-1)
        words = torch.arange(4, self.config.vocab_size, device=z.device)
        numbers = widened(words - 4 + self.config.lowest)
        noise = Normal(z, self.scales[1], validate_args=False)
        marks = torch.full_like(z.expand(*z.shape[:2], 4), -torch.inf)
        marks[..., list(KINDS)] = log_kind[:2]
        return torch.cat([marks, log_kind[2] + noise.log_prob(numbers)], -1)
