"""A pointer network: a GRU, which no choice changes, writes a word or copies one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

import lm_latent_eval.extend as lle

State = tuple[Tensor, ...]


class PointerConfig(lle.WordsConfig):
    """Sizes."""

    model_type = "pointer"
    hidden_size: int = lle.value(8, lle.Whole(1))
    window: int = lle.value(5, lle.Whole(1))


class Read(NamedTuple):
    """What no choice changes."""

    log_z: Tensor  # log p of writing, and of pointing to the last words, (B, T, 1 + W)
    log_x: Tensor  # log p(x_t | z_t), (B, T, 1 + W)
    log_written: Tensor  # log p of every word that is written, (B, T, V)
    window: Tensor  # the last words, (B, T, W)


class Pointer(lle.StepLM):
    """p(x, z): whether each word is written, or which one is copied."""

    config_class, main_input_name = PointerConfig, "inputs"

    def __init__(self, config: PointerConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.gru = nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)
        self.gate = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def recur(self, batch: lle.TokenBatch, before: State | None) -> State:
        inputs, size = batch.inputs, self.config.window
        hidden = self.gate.weight.new_zeros(len(inputs), self.config.hidden_size)
        window = inputs.new_full((len(inputs), size), lle.PADDING)
        hidden, window = before or (hidden, window)
        after, _ = self.gru(self.words(inputs), hidden[None].contiguous())
        windows = torch.cat([window, inputs], 1).unfold(1, size, 1)
        return torch.cat([hidden[:, None], after], 1), windows

    def read(self, batch: lle.TokenBatch, recurrent: State) -> Read:
        hidden, window = (part[:, 1:] for part in recurrent)  # after each input
        scores = lle.widened(hidden @ self.words.weight.T)
        scores[..., [lle.PADDING, lle.START]] = -torch.inf
        written = scores.log_softmax(-1)
        points = (self.words(window) * hidden[..., None, :]).sum(-1)
        points = points.masked_fill(window < lle.END, -torch.inf)  # these are no words
        log_z = lle.widened(torch.cat([self.gate(hidden), points], -1)).log_softmax(-1)
        words, cost = batch.uttered(self.config.vocab_size)
        log_x = written.gather(2, words[..., None]) + cost[..., None]
        copied = lle.widened(window == words[..., None]).log()
        return Read(log_z, torch.cat([log_x, copied], -1), written, window)

    def begin(self, batch: lle.TokenBatch) -> State:
        return (torch.zeros_like(batch.length[:, None, None]),)  # nothing to remember

    def step(self, read: Read, state: State, t: int) -> lle.Step:
        return lle.Step(read.log_z[:, None, t], read.log_x[:, None, t], key=state[0])

    def take(self, read: Read, state: State, choice: Tensor, t: int) -> State:
        return state

    def log_words(self, read: Read, state: State) -> Tensor:
        p_z, written = read.log_z[:, 0].exp(), read.log_written[:, 0].exp()
        p = (p_z[:, :1] * written).scatter_add(1, read.window[:, 0], p_z[:, 1:])
        return p.log()[:, None]
