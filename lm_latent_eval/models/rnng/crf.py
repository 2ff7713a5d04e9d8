r"""The proposal q(z | x): a conditional random field over binary trees.

.. math:: q(z \mid x) = \exp\Big(\frac{1}{\tau} \sum_{(i,j) \in z} s_{ij}
    - \log Z_\tau\Big)

A bidirectional LSTM reads the words with learned positions; F and B are its two halves.

.. math::
    s_{ij} = w^\top \mathrm{LN}(\mathrm{relu}(W v_{ij} + b)) + c, \qquad
    v_{ij} = [F_{j+2} - F_{i+1}; B_i - B_{j+1}]

for the span of words i .. j, from 0, where the mark before the sentence is place 0 of
the LSTM and word i is place i + 1. Single words have scores too; they cancel.

Departures: the paper's proposal shares the word embeddings of p, ours has its own.
As in the original program, the boundary marks are padding and start, not start and end.
Source: Kim et al. (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.proposals import Strengths
from lm_latent_eval.models.rnng import chart
from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.rotation import rotated
from lm_latent_eval.models.rnng.sentences import known_words, num_words
from lm_latent_eval.models.rnng.trees import (
    Trees,
    count_ends,
    from_ends,
    score_constituents,
)
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START

if TYPE_CHECKING:
    from lm_latent_eval.models.rnng.modeling import RNNG

SPANS_AT_ONCE = 1 << 14
"""Spans scored together."""


class SpanScores(nn.Module):
    """s_ij of every span of a sentence."""

    def __init__(self, config: RNNGConfig) -> None:
        """Build the layers."""
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
            length: Words of each sentence, (B,).

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
        i, j = torch.triu_indices(size, size, device=words.device)
        text, span = (j < length[:, None]).nonzero(as_tuple=True)
        i, j = i[span], j[span]
        # A gradient keeps all of them anyway.
        at_once = max(1, len(text)) if self.training else SPANS_AT_ONCE
        score = [
            self._score(forward, backward, *spans)
            for spans in zip(*(x.split(at_once) for x in (text, i, j)), strict=True)
        ]
        scores = forward.new_zeros(batch, size, size)
        return scores.index_put((text, i, j), torch.cat(score))

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
        marked = marked.scatter(1, length[:, None] + 1, START)
        places = torch.arange(marked.shape[1], device=words.device)
        # Padding of longer sentences may lie beyond the last position.
        value = self.embeddings(marked) + self.positions(
            places.clamp_max(self.positions.num_embeddings - 1)
        )
        packed = pack_padded_sequence(
            self.dropout(value),
            (length + 2).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        result, _ = pad_packed_sequence(
            self.rnn(packed)[0], batch_first=True, total_length=marked.shape[1]
        )
        return result


@dataclass(frozen=True)
class EncodedSpans:
    """Sentences with the scores of their spans."""

    batch: TokenBatch
    words: Tensor
    """Words of each sentence, (B,)."""
    scores: Tensor
    """As the proposal weighs them, (B, N, N) float64."""

    @cached_property
    def inside(self) -> chart.Chart:
        """Sums over the trees of every constituent."""
        return chart.inside(self.scores)

    @property
    def log_z(self) -> Tensor:
        """Log of the sum over all trees, (B,)."""
        return chart.at_root(self.inside, self.words)

    @property
    def entropy(self) -> Tensor:
        """Of q, in nats, (B,)."""
        return chart.at_root(chart.entropy(self.inside), self.words)


@dataclass(frozen=True)
class CRFProposal:
    """q(z | x): whole trees of whole sentences. Reads the sentence to its end."""

    model: RNNG
    temperature: float = 1.0
    strengths: Strengths = field(default_factory=lambda: {"scores": 1.0})
    name: str = "crf"

    @property
    def left_to_right(self) -> WordByWord:
        """What proposes where a sentence stops in the middle."""
        return WordByWord(
            self.model, "adapted", self.temperature, self.model.strengths("adapted")
        )

    def encode(self, batch: TokenBatch) -> EncodedSpans:
        """Score the spans of sentences.

        Raises:
            ValueError: If a text is no whole sentence, or too long.
        """
        return self.weighed(self.read(batch))

    def read(self, batch: TokenBatch) -> EncodedSpans:
        """Do what no strength changes.

        Raises:
            ValueError: If a text is no whole sentence, or too long.
        """
        config = self.model.config
        words = num_words(config, batch)
        size = max(int(words.max()), 1)
        ids = known_words(config, batch.targets[:, :size])
        return EncodedSpans(batch, words, self.model.spans(ids, words).double())

    def weighed(self, encoded: EncodedSpans) -> EncodedSpans:
        """Give what was read its strength."""
        factor = self.strengths["scores"] / self.temperature
        return replace(encoded, scores=encoded.scores * factor)

    def sample(
        self, encoded: EncodedSpans, uniforms: Uniforms, num_samples: int
    ) -> Draws[Trees]:
        """Draw K trees a sentence."""
        ends, log_q = chart.sample(encoded.inside, encoded.words, uniforms, num_samples)
        return Draws(self._trees(encoded, ends), log_q)

    def log_prob(self, encoded: EncodedSpans, trees: Trees) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        ends = count_ends(trees, encoded.words)
        score = score_constituents(ends, encoded.words, encoded.scores)
        return score - encoded.log_z[:, None]

    def beam(
        self, encoded: EncodedSpans, width: int, log_q: Tensor | None = None
    ) -> Beam[Trees]:
        """Find the ``width`` distinct trees of highest q; every one if they fit.

        ``log_q`` is not looked at: whole sentences have nothing before them.
        """
        best = chart.k_best(encoded.scores, width)
        ends, score = chart.trees_of(best, encoded.words)
        return Beam(
            self._trees(encoded, ends),
            score - encoded.log_z[:, None],
            torch.zeros_like(score, dtype=torch.long),
        )

    def moved(
        self, encoded: EncodedSpans, trees: Trees, uniforms: Uniforms
    ) -> tuple[Trees, Tensor]:
        """Rotate one constituent of each tree."""
        u = uniforms(0)[..., 0]
        return rotated(trees, encoded.batch, encoded.words, u), torch.zeros_like(u)

    @staticmethod
    def _trees(encoded: EncodedSpans, ends: Tensor) -> Trees:
        batch = encoded.batch
        return from_ends(ends, batch.length, batch.targets.shape[1])
