r"""The generative network: stack LSTM, composition, actions and words.

Notation: u is the top hidden state of the LSTM over the stack, E the embeddings.

.. math::
    P(\mathrm{REDUCE}) &= \sigma(w \cdot u + b), \\
    P(x \mid \mathrm{SHIFT}) &= \mathrm{softmax}(E u + b_v)_x

SHIFT puts the item (E_x, 0) on the stack, REDUCE replaces the two topmost items L, R by

.. math::
    c = \sigma(f_R) c_R + \sigma(f_L) c_L + \sigma(i) \tanh g, \quad
    h = \sigma(o) \tanh c, \quad [i; f_R; f_L; o; g] = W [h_R; h_L] + b

and the LSTM reads the new item from the state under it. With fewer than two items
SHIFT is forced and free. Source: Kim et al. (2019); the order of gates and children,
and the bounds of P(REDUCE), are those of the original program.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.models.rnng.growth import Growth
from lm_latent_eval.models.rnng.stacks import Stacks
from lm_latent_eval.text.words import END, START

SMALLEST_ACTION = 1e-7
"""P(REDUCE) stays this far from 0 and 1."""

WORDS_AT_ONCE = 1 << 12
"""Rows of word scores held at a time, at most."""
TABLE = 1 << 21
"""Scores (rows x words) held at a time: what fits in the cache is normalised faster."""


class StackCell(nn.Module):
    """LSTM layers that read one item from the state under it."""

    def __init__(self, size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.size = size
        self.linears = nn.ModuleList(
            nn.Linear(2 * size, 4 * size) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: Tensor, state: Tensor) -> Tensor:
        """Read values (R, d) in states (R, layers, 2, d); return the new states."""
        layers: list[Tensor] = []
        for linear, layer in zip(self.linears, state.unbind(1), strict=True):
            h, c = layer.unbind(1)
            if layers:
                value = self.dropout(value)
            gates = linear(torch.cat([value, h], -1))
            i, f, o = gates[:, : 3 * self.size].sigmoid().chunk(3, -1)
            c = f * c + i * gates[:, 3 * self.size :].tanh()
            value = o * c.tanh()
            layers += [value, c]
        return torch.stack(layers, 1).view_as(state)


class Composition(nn.Module):
    """A binary tree LSTM."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.linear = nn.Linear(2 * size, 5 * size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Compose items (h, c), each (R, 2, d)."""
        (h_left, c_left), (h_right, c_right) = left.unbind(1), right.unbind(1)
        gates = self.linear(torch.cat([h_right, h_left], -1))
        i, f_right, f_left, o = gates[:, : 4 * self.size].sigmoid().chunk(4, -1)
        c = f_right * c_right + f_left * c_left + i * gates[:, 4 * self.size :].tanh()
        return torch.stack([o * c.tanh(), c], 1)


class GenerativeModel(nn.Module):
    """p(x, z), one move at a time over many stacks at once."""

    def __init__(self, config: RNNGConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.stack = StackCell(size, config.num_layers, config.dropout)
        self.composition = Composition(size)
        self.action = nn.Linear(size, 1)
        self.dropout = nn.Dropout(config.dropout)

    # -- moves ----------------------------------------------------------------------

    def begin(self) -> Stacks:
        """Return the empty stack, over the start word, as row 0."""
        start = self.embeddings.weight[START][None]
        shape = (1, self.config.num_layers, 2, self.config.hidden_size)
        state = self.stack(start, start.new_zeros(shape))
        return Stacks.of_one(state, start.new_zeros(1, 2, self.config.hidden_size))

    def grown(self, stacks: Stacks, growth: Growth) -> Stacks:
        """Return a table with the stacks that moves make."""
        table = stacks.extended(growth.below, growth.size)
        table.item[growth.shift, 0] = self.embeddings(growth.word)
        for move in growth.transitions:
            if move.reduced.start < move.reduced.stop:
                left, right = table.item[move.left], table.item[move.right]
                table.item[move.reduced] = self.composition(left, right)
            read = table.item[move.new, 0], table.state[move.base]
            table.state[move.new] = self.stack(*read)
        return table

    # -- factors --------------------------------------------------------------------

    @property
    def rows_at_once(self) -> int:
        """Rows of word scores held at a time; a gradient keeps all of them anyway."""
        if self.training:
            return WORDS_AT_ONCE
        return max(1, min(WORDS_AT_ONCE, TABLE // self.config.vocab_size))

    def log_actions(self, top: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P(SHIFT) and log P(REDUCE) in nats, each (R,) float64.

        Args:
            top: u of each stack, (R, d).
            size: Items on it, (R,).
        """
        logit = widened(self.action(self.dropout(top))[:, 0])
        bounds = math.log(SMALLEST_ACTION), math.log1p(-SMALLEST_ACTION)
        forced = size < 2
        log_shift = F.logsigmoid(-logit).clamp(*bounds).masked_fill(forced, 0.0)
        log_reduce = F.logsigmoid(logit).clamp(*bounds)
        return log_shift, log_reduce.masked_fill(forced, -torch.inf)

    def log_words(self, top: Tensor, size: Tensor) -> Tensor:
        """Return the log-probabilities of every word, (R, V) nats."""
        never = sent(torch.tensor(self.config.never_uttered).long(), top.device)
        bias = self.bias.index_fill(0, never, -torch.inf)
        scores = F.linear(self.dropout(top), self.embeddings.weight, bias)
        if not self.config.sentence_ends:
            return scores.log_softmax(-1)
        # An end makes a sentence only of one tree.
        impossible = size != 1
        if self.config.only_possible:
            scores[:, END].masked_fill_(impossible, -torch.inf)
            return scores.log_softmax(-1)
        log_p = scores.log_softmax(-1)
        ends = log_p[:, END].masked_fill(impossible, -torch.inf)
        return log_p.select_scatter(ends, 1, END)

    def log_word(self, top: Tensor, size: Tensor, word: Tensor) -> Tensor:
        """Return log P(word | SHIFT) of one word a stack in nats, (R,) float64."""
        at_once = self.rows_at_once
        stacks = zip(*(x.split(at_once) for x in (top, size, word)), strict=True)
        parts = [
            widened(self.log_words(u, n).gather(1, w[:, None])[:, 0])
            for u, n, w in stacks
        ]
        return torch.cat(parts)
