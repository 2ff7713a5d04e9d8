"""A transducer, p(y, z | x): it reads x from left to right, and writes y on the way.

Steps without a word, on to the next of x, are bounded, so they are part of the next
choice: z_t is where word t of y is written. Beyond x the text ends (Graves, 2012).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lm_latent_eval.extend as lle

State = tuple[Tensor, ...]


class TransducerConfig(lle.WordsConfig):
    """Words of both languages."""

    model_type = "transducer"


class Read(NamedTuple):
    """What no choice changes, at the S places of x and beyond."""

    log_skip: Tensor  # log p of going on at all places before one, (B, T, S + 1)
    log_stop: Tensor  # log p of writing there, (B, T, S + 1)
    log_write: Tensor  # log p of each word there, (B, T, S + 1, V)
    log_y: Tensor  # log p(y_t | z_t), (B, T, S + 1)


class Transducer(lle.StepLM):
    """p(y, z | x): where in x each word of y is written."""

    config_class = TransducerConfig
    main_input_name, conditional_on = "inputs", "the sentence that is translated"

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__(config)
        size = config.vocab_size  # by the word of x, and by the last word of y
        self.skips = nn.Parameter(torch.zeros(2, size))
        self.writes = nn.Parameter(torch.zeros(2, size, size))
        self.post_init()

    def read(self, batch: lle.TokenBatch, recurrent: State) -> Read:
        size, length = self.config.vocab_size, batch.given.length[:, None, None]
        x = F.pad(batch.given.uttered(size)[0], (0, 1))[:, None]  # (B, 1, S + 1)
        last = batch.inputs.clamp_max(size - 1)[..., None]  # (B, T, 1)
        beyond = torch.arange(x.shape[2], device=x.device) >= length
        skip = lle.widened(self.skips[0][x] + self.skips[1][last])
        log_stop = F.logsigmoid(-skip).masked_fill(beyond, 0.0)
        log_skip = F.logsigmoid(skip).masked_fill(beyond, -torch.inf).cumsum(-1)
        writes = lle.widened(self.writes[0][x] + self.writes[1][last])
        writes[..., [lle.PADDING, lle.START, lle.END]] = -torch.inf
        ends = lle.widened(torch.eye(size, device=x.device)[lle.END]).log()
        log_write = torch.where(beyond[..., None], ends, writes.log_softmax(-1))
        words, cost = batch.uttered(size)
        index = words[..., None, None].expand(*log_write.shape[:3], 1)
        log_y = log_write.gather(3, index)[..., 0] + cost[..., None]
        return Read(F.pad(log_skip, (1, 0))[..., :-1], log_stop, log_write, log_y)

    def begin(self, batch: lle.TokenBatch) -> State:
        return (torch.zeros_like(batch.length[:, None]),)

    def step(self, read: Read, state: State, t: int) -> lle.Step:
        at, key = state[0][..., None], torch.arange(read.log_skip.shape[2])
        skip = read.log_skip[:, None, t].expand(-1, at.shape[1], -1)
        log_z = skip - skip.gather(2, at) + read.log_stop[:, None, t]
        log_z = log_z.masked_fill(key.to(at.device) < at, -torch.inf)
        return lle.Step(log_z, read.log_y[:, None, t], key=key)

    def take(self, read: Read, state: State, choice: Tensor, t: int) -> State:
        return (choice,)

    def log_words(self, read: Read, state: State) -> Tensor:
        log_z = self.step(read, state, 0).log_prior
        return (log_z[..., None] + read.log_write[:, None, 0]).logsumexp(-2)
