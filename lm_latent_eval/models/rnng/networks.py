r"""Configuration and networks of an RNNG: stack LSTM and words of p, span scores of q.

**p.** u is the top hidden state of the LSTM over the stack, E the embeddings:

.. math::
    P(\mathrm{REDUCE}) &= \sigma(w \cdot u + b), \\
    P(x \mid \mathrm{SHIFT}) &= \mathrm{softmax}(E u + b_v)_x

SHIFT puts the item (E_x, 0) on the stack, REDUCE replaces the two topmost items L, R by

.. math::
    c = \sigma(f_R) c_R + \sigma(f_L) c_L + \sigma(i) \tanh g, \quad
    h = \sigma(o) \tanh c, \quad [i; f_R; f_L; o; g] = W [h_R; h_L] + b

and the LSTM reads the new item from the state under it. With fewer than two items
SHIFT is forced and free.

**q.** A bidirectional LSTM, of halves F and B, reads the words with learned positions:

.. math::
    s_{ij} = w^\top \mathrm{LN}(\mathrm{relu}(W v_{ij} + b)) + c, \qquad
    v_{ij} = [F_{j+2} - F_{i+1}; B_i - B_{j+1}]

for the span of words i .. j, from 0, where the mark before the sentence is place 0 of
the LSTM and word i is place i + 1. Single words have scores too; they cancel.

Departures: as in the original program are the order of gates and children, the bounds
of P(REDUCE), and the marks around a sentence: padding and start, not start and end.
Source: Kim et al. (2019).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.models.pretrained import TrainedConfig, value
from lm_latent_eval.models.rnng.stacks import (
    Growth,
    Integers,
    Stacks,
    growth,
)
from lm_latent_eval.text.batch import excluding
from lm_latent_eval.text.words import END, PADDING, START
from lm_latent_eval.values import Flag, Matching, Whole

LANGUAGE = Matching(r"[a-z]{2,3}(-[A-Za-z]+)*", "the code of a language, en, say")


class RNNGConfig(TrainedConfig):
    """Configuration of a recurrent neural network grammar and its CRF proposal.

    Args:
        hidden_size: d, shared by embeddings, stack and composition.
        num_layers: Layers of the stack LSTM.
        proposal_size: Size of each direction of the proposal's LSTM.
        max_words: Length of the longest sentence that the proposal can read.
        sentence_ends: Whether a sentence ends with an end word. Without it p is no
            distribution over sentences of all lengths.
        only_possible: Exclude an end before one tree stands, and charge nothing after
            it, so that p is normalised; None is yes if sentences end. Original
            checkpoints were trained with impossible moves.
        language: Code of the language whose sentences documents are split into.
    """

    model_type = "latent_eval_rnng"
    hidden_size: int = value(128, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    proposal_size: int = value(128, Whole(1))
    max_words: int = value(248, Whole(1))
    sentence_ends: bool = value(True, Flag())
    only_possible: bool | None = value(None, Flag())
    language: str = value("en", LANGUAGE)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.only_possible is None:
            self.only_possible = self.sentence_ends
        if self.only_possible and not self.sentence_ends:
            raise ValueError(
                "only_possible=True: without sentence_ends no model is normalised"
            )
        super().__post_init__(**kwargs)


SMALLEST_ACTION = 1e-7
"""Distance of P(REDUCE) from 0 and 1."""

WORDS_AT_ONCE = 1 << 12
"""Largest number of rows of word scores held at a time."""
TABLE = 1 << 21
"""Largest number of scores (rows x words) held at a time, sized for the cache."""


class StackCell(nn.Module):
    """LSTM layers that read values (R, d) in states (R, layers, 2, d)."""

    def __init__(self, size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.size = size
        self.linears = nn.ModuleList(
            nn.Linear(2 * size, 4 * size) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: Tensor, state: Tensor) -> Tensor:
        layers: list[Tensor] = []
        for linear, layer in zip(self.linears, state.unbind(1), strict=True):
            h, c = layer.unbind(1)
            if layers:
                value = self.dropout(value)
            gates = linear(torch.cat([value, h], -1))
            opened, new = gates.split([3 * self.size, self.size], -1)
            i, f, o = opened.sigmoid().chunk(3, -1)
            c = torch.addcmul(f * c, i, new.tanh())
            value = o * c.tanh()
            layers += [value, c]
        return torch.stack(layers, 1).view_as(state)


class Composition(nn.Module):
    """A binary tree LSTM over items (h, c), each (R, 2, d)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.linear = nn.Linear(2 * size, 5 * size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        (h_left, c_left), (h_right, c_right) = left.unbind(1), right.unbind(1)
        gates = self.linear(torch.cat([h_right, h_left], -1))
        opened, value = gates.split([4 * self.size, self.size], -1)
        i, f_right, f_left, o = opened.sigmoid().chunk(4, -1)
        c = torch.addcmul(f_right * c_right, f_left, c_left).addcmul(i, value.tanh())
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
        """Table with the empty stack, over the start word, as row 0."""
        start = self.embeddings.weight[START][None]
        items = start.new_zeros(1, 2, self.config.hidden_size)
        state = start.new_zeros(1, self.config.num_layers, *items.shape[1:])
        none = np.zeros(1, np.int64)
        return Stacks((self.stack(start, state),), items, none, none, none)

    def grown(self, stacks: Stacks, growth: Growth) -> Stacks:
        """Add the stacks that moves make: items first, then states."""
        if not len(growth.move):
            return stacks
        begin, end = len(stacks.items), len(stacks.items) + len(growth.word)
        num_items = end + sum(len(left) for left, _ in growth.composed)
        zeros = stacks.items.new_zeros(num_items - begin, *stacks.items.shape[1:])
        item = torch.cat([stacks.items, zeros])
        item[begin:end, 0] = self.embeddings(growth.word)
        for left, right in growth.composed:
            begin, end = end, end + len(left)
            item[begin:end] = self.composition(item[left], item[right])
        sizes = [len(growth.base), *map(len, growth.bases)]
        value, *values = item[:, 0][growth.value].split(sizes)
        states = [self.stack(value, stacks.state(growth.base))]
        for value, base in zip(values, growth.bases, strict=True):
            states.append(self.stack(value, states[-1][base]))
        parts = *stacks.states, torch.cat(states)
        return Stacks(parts, item, growth.below, growth.size, growth.item)

    def moved(
        self, stacks: Stacks, row: Integers, moves: Integers
    ) -> tuple[Stacks, Integers]:
        """Apply moves, (R, A), to stacks, (R,).

        Returns:
            The enlarged table; stacks before each move and after the last, (R, A + 1).
        """
        made = growth(stacks, row, moves)
        return self.grown(stacks, made), made.path

    # -- factors --------------------------------------------------------------------

    @property
    def rows_at_once(self) -> int:
        if self.training:  # a gradient keeps all rows anyway
            return WORDS_AT_ONCE
        return max(1, min(WORDS_AT_ONCE, TABLE // self.config.vocab_size))

    def log_actions(self, top: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """log P(SHIFT) and log P(REDUCE) in nats, each (R,) float64.

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
        """Log-probabilities of every word, (R, V) nats."""
        bias = excluding(self.bias, self.config.never_uttered)
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
        """log P(word | SHIFT) of one word a stack in nats, (R,) float64."""
        at_once = self.rows_at_once
        stacks = zip(*(x.split(at_once) for x in (top, size, word)), strict=True)
        parts = [
            widened(self.log_words(u, n).gather(1, w[:, None])[:, 0])
            for u, n, w in stacks
        ]
        return torch.cat(parts)


SPANS_AT_ONCE = 1 << 14
"""Number of spans scored together."""


class SpanScores(nn.Module):
    """Scores s_ij of every span of a sentence."""

    def __init__(self, config: RNNGConfig) -> None:
        super().__init__()
        size = 2 * config.proposal_size
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_words + 2, config.hidden_size)
        self.rnn = nn.LSTM(
            config.hidden_size,
            config.proposal_size,
            batch_first=True,
            bidirectional=True,
        )
        self.score = nn.Sequential(
            nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size), nn.Linear(size, 1)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, words: Tensor, length: Tensor) -> Tensor:
        """Score spans.

        Args:
            words: Word ids, (B, N).
            length: Words of each sentence, on the host, (B,).

        Returns:
            (B, N, N), row i and column j for words i .. j; 0 outside spans.

        Raises:
            ValueError: If a sentence is too long for the learned positions.
        """
        batch, size = words.shape
        longest = self.positions.num_embeddings - 2
        if int(length.max()) > longest:
            raise ValueError(
                f"a sentence of {int(length.max())} words: this proposal can read "
                f"{longest}; split the text into sentences, or use a proposal that "
                "reads from left to right"
            )
        forward, backward = self._read(words, length).chunk(2, -1)
        i, j = torch.triu_indices(size, size)
        text, span = (j < length[:, None]).nonzero(as_tuple=True)
        spans = sent(torch.stack([text, i[span], j[span]]), words.device)
        # A gradient keeps all of them anyway.
        at_once = max(1, len(text)) if self.training else SPANS_AT_ONCE
        score = [self._score(forward, backward, *s) for s in spans.split(at_once, 1)]
        scores = forward.new_zeros(batch, size, size)
        return scores.index_put(tuple(spans), torch.cat(score))

    def _score(
        self, forward: Tensor, backward: Tensor, text: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        vector = torch.cat(
            [
                forward[text, j + 2] - forward[text, i + 1],
                backward[text, i] - backward[text, j + 1],
            ],
            -1,
        )
        score: Tensor = self.score(self.dropout(vector))[:, 0]
        return score

    def _read(self, words: Tensor, length: Tensor) -> Tensor:
        left = words.new_full((len(words), 1), PADDING)
        marked = torch.cat([left, words, left], 1)
        end = sent(length[:, None] + 1, words.device)
        marked = marked.scatter(1, end, START)
        places = torch.arange(marked.shape[1], device=words.device)
        # Padding of longer sentences may lie beyond the last position.
        value = self.embeddings(marked) + self.positions(
            places.clamp_max(self.positions.num_embeddings - 1)
        )
        packed = pack_padded_sequence(
            self.dropout(value),
            length + 2,
            batch_first=True,
            enforce_sorted=False,
        )
        result, _ = pad_packed_sequence(
            self.rnn(packed)[0], batch_first=True, total_length=marked.shape[1]
        )
        return result
