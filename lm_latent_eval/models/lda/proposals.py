r"""Proposals of topics: for a text as a whole, and from left to right.

``document`` draws topics independently, with pseudo-counts of the other words' topics
that are iterated until they hardly move:

.. math:: q_t(n) \propto \phi_{n, x_t} \Bigl(\alpha_n + \sum_{t' \ne t} q_{t'}(n)\Bigr)

``adapted`` draws z_t in proportion to p(z_t, x_t | z_<t), ``prior`` to p(z_t | z_<t).

Source: Wallach, Murray, Salakhutdinov and Mimno (2009), "Evaluation methods for topic
models", section 3: importance sampling with iterated pseudo-counts, and the particles
of the left-to-right estimator without the redrawing of earlier topics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.sweeps import invert_cdf
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.lda.joint import LDAJoint
from lm_latent_eval.models.lda.search import best_topics
from lm_latent_eval.models.lda.topics import (
    Encoded,
    TopicConditionals,
    TopicState,
    gathered,
)
from lm_latent_eval.text.batch import TokenBatch

ITERATIONS = 20
"""Of pseudo-counts."""


@dataclass(frozen=True)
class LeftToRightTopics(ABC):
    """q(z | x), one topic after another."""

    model: LDAJoint
    temperature: float

    def encode(self, batch: TokenBatch, after: TopicState | None = None) -> Encoded:
        """Look words up."""
        return self.model.encode(batch, after)

    @abstractmethod
    def log_scores(self, encoded: Encoded, counts: Tensor, t: int) -> Tensor:
        """Return what a draw of z_t is in proportion to, nats, (B, K, N)."""

    def _log_prob(self, encoded: Encoded, counts: Tensor, t: int) -> Tensor:
        """Return log q of each choice of z_t, (B, K, N)."""
        scores = self.log_scores(encoded, counts, t)
        return (scores / self.temperature).log_softmax(-1)

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[Tensor]:
        """Draw the topics of K latents a text, word by word."""
        topics = _no_topics(encoded, num_samples)
        counts = encoded.state.counts.expand(-1, num_samples, -1).clone()
        log_q = counts.new_zeros(topics.shape[:2])
        for t, inside in enumerate(encoded.batch.inside.unsqueeze(-1).unbind(1)):
            log_p = self._log_prob(encoded, counts, t)
            drawn = invert_cdf(log_p, uniforms(t)[..., 0]).masked_fill(~inside, 0)
            topics[..., t] = drawn
            log_q += _added(counts, log_p, drawn, inside)
        return Draws(topics, log_q)

    def log_prob(self, encoded: Encoded, topics: Tensor) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        counts = encoded.state.counts.expand(-1, topics.shape[1], -1).clone()
        log_q = counts.new_zeros(topics.shape[:2])
        for t, inside in enumerate(encoded.batch.inside.unsqueeze(-1).unbind(1)):
            log_p = self._log_prob(encoded, counts, t)
            log_q += _added(counts, log_p, topics[..., t], inside)
        return log_q

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Tensor]:
        """Find up to ``width`` distinct latents of high scores."""
        if score is None:
            score = encoded.log_words.new_zeros(len(encoded.log_words), 1)
        counts = encoded.state.counts.expand(-1, score.shape[1], -1)

        return best_topics(
            lambda t, counts: self.log_scores(encoded, counts, t) / self.temperature,
            counts,
            encoded.batch.inside,
            width,
            score,
        )

    def advance(self, encoded: Encoded, topics: Tensor) -> TopicState:
        """Return the topics after the piece."""
        return self.model.advance(encoded, topics)

    def moved(
        self, encoded: Encoded, topics: Tensor, uniforms: Uniforms
    ) -> tuple[Tensor, Tensor]:
        """Draw the topic of one word anew, by what topics say of the word alone."""
        u, (_, length) = uniforms(0), encoded.batch.on_host
        t = (u[..., 0] * length[:, None]).long()[..., None]
        t = sent(t, topics.device)
        scores = _possible(encoded.log_words)
        size = len(scores), topics.shape[1], scores.shape[-1]
        log_r = scores.gather(1, t.expand(size)).log_softmax(-1)
        old, new = topics.gather(2, t), invert_cdf(log_r, u[..., 1])[..., None]
        log_ratio = log_r.gather(2, old) - log_r.gather(2, new)
        return topics.scatter(2, t, new), log_ratio[..., 0]


@dataclass(frozen=True)
class Adapted(LeftToRightTopics):
    """In proportion to p(z_t, x_t | z_<t), so beams rank by log p(x, z)."""

    name: str = "adapted"

    def log_scores(self, encoded: Encoded, counts: Tensor, t: int) -> Tensor:
        """Return log p(z_t, x_t | z_<t), (B, K, N)."""
        urn = _log_share(counts + self.model.alpha)
        return urn + _possible(encoded.log_words[:, None, t])


@dataclass(frozen=True)
class Prior(LeftToRightTopics):
    """As p draws topics before it draws words."""

    name: str = "prior"

    def log_scores(self, encoded: Encoded, counts: Tensor, t: int) -> Tensor:
        """Return log p(z_t | z_<t), (B, K, N)."""
        return _log_share(counts + self.model.alpha)

    def conditionals(
        self, encoded: Encoded, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, each given all others.

        Raises:
            ValueError: If the prior is flattened or sharpened.
        """
        if self.temperature != 1.0:
            raise ValueError(
                f"the prior at temperature {self.temperature:g} does not say what one "
                "topic is given the others: leave temperature out"
            )
        scores = torch.zeros_like(encoded.log_words)
        inside = encoded.batch.inside
        return TopicConditionals.begin(scores, inside, self.model.alpha, latents)


@dataclass(frozen=True)
class EncodedDocument:
    """Whole texts with the distribution of each word's topic."""

    read: Encoded
    log_q: Tensor
    """log q_t, nats, (B, T, N)."""

    @property
    def batch(self) -> TokenBatch:
        """The texts."""
        return self.read.batch


@dataclass(frozen=True)
class FittedTopics:
    """q(z | x) of independent topics, fitted to the whole text."""

    model: LDAJoint
    temperature: float
    name: str = "document"

    @property
    def left_to_right(self) -> Adapted:
        """What proposes where a text stops."""
        return Adapted(self.model, self.temperature)

    def encode(self, batch: TokenBatch) -> EncodedDocument:
        """Iterate pseudo-counts."""
        read = self.model.encode(batch)
        scores = _possible(read.log_words)
        inside = batch.inside[..., None]
        q = torch.ones_like(scores) / scores.shape[-1]
        log_q = q.log()
        for _ in range(ITERATIONS):
            q = q.masked_fill(~inside, 0.0)
            others = q.sum(1, keepdim=True) - q
            log_q = (scores + (others + self.model.alpha).log()).log_softmax(-1)
            q = log_q.exp()
        return EncodedDocument(read, (log_q / self.temperature).log_softmax(-1))

    def sample(
        self, encoded: EncodedDocument, uniforms: Uniforms, num_samples: int
    ) -> Draws[Tensor]:
        """Draw the topics of K latents a text."""
        topics = _no_topics(encoded.read, num_samples)
        inside = encoded.batch.inside
        for t in range(topics.shape[-1]):
            log_q = encoded.log_q[:, None, t].expand(-1, num_samples, -1)
            drawn = invert_cdf(log_q, uniforms(t)[..., 0])
            topics[..., t] = drawn.masked_fill(~inside[:, t, None], 0)
        return Draws(topics, self.log_prob(encoded, topics))

    def log_prob(self, encoded: EncodedDocument, topics: Tensor) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        return gathered(encoded.log_q, topics, encoded.batch.inside)

    def beam(
        self, encoded: EncodedDocument, width: int, score: Tensor | None = None
    ) -> Beam[Tensor]:
        """Find the ``width`` latents of highest q."""
        return best_topics(
            lambda t, counts: encoded.log_q[:, None, t].expand_as(counts),
            encoded.read.state.counts,
            encoded.batch.inside,
            width,
            encoded.log_q.new_zeros(len(encoded.log_q), 1),
        )

    def conditionals(
        self, encoded: EncodedDocument, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, which do not depend on one another."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.log_q, inside, None, latents)


def _log_share(urn: Tensor) -> Tensor:
    return urn.log() - urn.sum(-1, keepdim=True).log()


def _possible(log_words: Tensor) -> Tensor:
    """Let words that no topic utters say nothing of topics."""
    return log_words.masked_fill(log_words.isneginf(), 0.0)


def _no_topics(encoded: Encoded, num_samples: int) -> Tensor:
    batch, tokens = encoded.batch.targets.shape
    return encoded.batch.targets.new_zeros(batch, num_samples, tokens)


def _added(counts: Tensor, log_q: Tensor, topic: Tensor, inside: Tensor) -> Tensor:
    """Count the topics of one token *in place*; return their log q, (B, K)."""
    ones = widened(inside).expand_as(topic)[..., None]
    counts.scatter_add_(2, topic[..., None], ones)
    chosen = log_q.gather(2, topic[..., None])[..., 0]
    return chosen.masked_fill(~inside, 0.0)
