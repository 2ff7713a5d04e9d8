r"""The proposal q(z | x): a conditional random field over binary trees.

.. math:: q(z \mid x) = \exp\Big(\frac{1}{\tau} \sum_{(i,j) \in z} s_{ij}
    - \log Z_\tau\Big)

where s_ij are the scores of spans (``spans.py``). A device computes those; over trees
the host sums, draws and searches, for which a device would be asked for hundreds of
small operations.

Departures: the paper's proposal shares the word embeddings of p, ours has its own.
Source: Kim et al. (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.rnng import chart
from lm_latent_eval.models.rnng.joint import RNNGJoint
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


@dataclass(frozen=True)
class EncodedSpans:
    """Sentences with the scores of their spans."""

    batch: TokenBatch
    words: Tensor
    """Words of each sentence, on the host, (B,)."""
    scores: Tensor
    """As the proposal weighs them, on the host, (B, N, N) float64."""

    @cached_property
    def inside(self) -> chart.Chart:
        """Sums over the trees of every constituent."""
        return chart.inside(self.scores)

    @property
    def log_z(self) -> Tensor:
        """Log of the sum over all trees, on the host, (B,)."""
        return chart.at_root(self.inside, self.words)

    @property
    def entropy(self) -> Tensor:
        """Of q, in nats, (B,)."""
        found = chart.at_root(chart.entropy(self.inside), self.words)
        return sent(found, self.batch.length.device)


@dataclass(frozen=True)
class CRFProposal:
    """q(z | x): whole trees of whole sentences. Reads the sentence to its end."""

    model: RNNGJoint
    temperature: float = 1.0
    name: str = "crf"

    @property
    def left_to_right(self) -> WordByWord:
        """What proposes where a sentence stops in the middle."""
        return WordByWord(self.model, "adapted", self.temperature)

    def encode(self, batch: TokenBatch) -> EncodedSpans:
        """Score the spans of sentences.

        Raises:
            ValueError: If a text is no whole sentence, or too long.
        """
        config = self.model.config
        words = num_words(config, batch)
        size = max(int(words.max()), 1)
        ids = known_words(config, batch.targets[:, :size])
        scores = self.model.spans(ids, words)
        scores = fetched(scores)[0].double() * (1.0 / self.temperature)
        return EncodedSpans(batch, words, scores)

    def sample(
        self, encoded: EncodedSpans, uniforms: Uniforms, num_samples: int
    ) -> Draws[Trees]:
        steps = range(max(int(encoded.words.max()) - 1, 0))
        numbers = [uniforms(m)[..., 0] for m in steps]
        ends, log_q = chart.sample(encoded.inside, encoded.words, numbers, num_samples)
        return Draws(self._trees(encoded, ends), self._sent(log_q))

    def log_prob(self, encoded: EncodedSpans, trees: Trees) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        ends = count_ends(Trees(*fetched(*trees)), encoded.words)
        score = score_constituents(ends, encoded.words, encoded.scores)
        return self._sent(score - encoded.log_z[:, None])

    def beam(
        self, encoded: EncodedSpans, width: int, log_q: Tensor | None = None
    ) -> Beam[Trees]:
        """Find the ``width`` distinct trees of highest q; every one if they fit.

        ``log_q`` is not looked at: whole sentences have nothing before them.
        """
        best = chart.k_best(encoded.scores, width)
        ends, score = chart.trees_of(best, encoded.words)
        score = self._sent(score - encoded.log_z[:, None])
        trees = self._trees(encoded, ends)
        return Beam(trees, score, torch.zeros_like(score, dtype=torch.long))

    def moved(
        self, encoded: EncodedSpans, trees: Trees, uniforms: Uniforms
    ) -> tuple[Trees, Tensor]:
        """Rotate one constituent of each tree."""
        return rotated(trees, encoded.batch, encoded.words, uniforms(0)[..., 0])

    def _trees(self, encoded: EncodedSpans, ends: Tensor) -> Trees:
        targets, length = encoded.batch.on_host
        return from_ends(ends, length, targets.shape[1])

    def _sent(self, found: Tensor) -> Tensor:
        return sent(found, self.model.device)
