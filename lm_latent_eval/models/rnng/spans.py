r"""Span scores of a sentence, the potentials of the tree CRF.

A bidirectional LSTM reads the words with learned positions; F and B are its two halves.

.. math::
    s_{ij} = w^\top \mathrm{LN}(\mathrm{relu}(W v_{ij} + b)) + c, \qquad
    v_{ij} = [F_{j+2} - F_{i+1}; B_i - B_{j+1}]

for the span of words i .. j, from 0, where the mark before the sentence is place 0 of
the LSTM and word i is place i + 1. Single words have scores too; they cancel.

Departures: as in the original program, the boundary marks are padding and start, not
start and end.
Source: Kim et al. (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm_latent_eval.devices import sent
from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.text.words import PADDING, START

SPANS_AT_ONCE = 1 << 14
"""Spans scored together."""


class SpanScores(nn.Module):
    """s_ij of every span of a sentence."""

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
            (B, N, N), row i and column j for words i .. j; 0 where there is no span.

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
        """Return s_ij of spans of some texts, (number of spans,)."""
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
        """Run the LSTM over the sentence between its marks, (B, N + 2, 2q)."""
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
