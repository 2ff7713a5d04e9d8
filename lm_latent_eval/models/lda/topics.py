r"""Gibbs steps over topic assignments.

With the proportions integrated out the topics of a text are a Polya urn:

.. math::
    p(z_t = n \mid z_{-t}) = \frac{c_n + \alpha_n}{C + A}, \qquad
    A = \sum_n \alpha_n

where c_n of the C other words have topic n. Symbols: c -> ``counts``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lm_latent_eval.devices import widened


def count(topics: Tensor, inside: Tensor, num_topics: int) -> Tensor:
    """Count the topics of each latent: (B, K, T), (B, T) -> (B, K, N) float64."""
    shape = (*topics.shape[:2], num_topics)
    ones = widened(inside[:, None]).expand(topics.shape)
    return ones.new_zeros(shape).scatter_add(2, topics, ones)


def log_urn(before: Tensor, drawn: Tensor, alpha: Tensor) -> Tensor:
    """Return log p(z) of topics drawn after others, nats, (B, K).

    Args:
        before: How often each topic was drawn before, (B, K, N).
        drawn: How often each is drawn now.
        alpha: Parameters of the Dirichlet distribution, (N,).
    """
    begun = before + alpha
    each = torch.lgamma(begun + drawn) - torch.lgamma(begun)
    total = torch.lgamma(begun.sum(-1) + drawn.sum(-1)) - torch.lgamma(begun.sum(-1))
    return each.sum(-1) - total


@dataclass
class TopicConditionals:
    """K latents a text, and what the others say of each decision.

    With ``alpha`` the others are an urn; without it decisions are independent.
    """

    scores: Tensor
    """What a decision is worth by itself, nats, (B, T, N) float64."""
    inside: Tensor
    """Which places hold a token, (B, T)."""
    alpha: Tensor | None
    topics: Tensor
    """(B, K, T)."""
    counts: Tensor
    """Of the decided ones, (B, K, N)."""
    decided: set[int] = field(default_factory=set)
    """Tokens that have a topic."""

    @classmethod
    def begin(
        cls, scores: Tensor, inside: Tensor, alpha: Tensor | None, latents: Tensor | int
    ) -> TopicConditionals:
        """Take K latents a text, or K undecided ones."""
        (batch, tokens, num_topics) = scores.shape
        if isinstance(latents, int):
            topics = scores.new_zeros(batch, latents, tokens, dtype=torch.long)
            counts = scores.new_zeros(batch, latents, num_topics)
            return cls(scores, inside, alpha, topics, counts)
        counts = count(latents, inside, num_topics)
        decided = set(range(tokens))
        return cls(scores, inside, alpha, latents.clone(), counts, decided)

    @property
    def latents(self) -> Tensor:
        """What has been decided, (B, K, T)."""
        return self.topics.clone()

    def choices(self, t: int) -> Tensor:
        """Return the topics of token t, (B, K)."""
        return self.topics[..., t]

    def log_p(self, t: int) -> Tensor:
        """Return what the other decisions and the word say of each topic, (B, K, N)."""
        inside = self.inside[:, t, None, None]
        score = self.scores[:, None, t]
        if self.alpha is not None:
            others = self.counts + self.alpha
            if t in self.decided:
                one = -widened(inside).expand(*self.topics.shape[:2], 1)
                others = others.scatter_add(2, self.topics[..., t, None], one)
            score = score + others.log() - others.sum(-1, keepdim=True).log()
        past = torch.full_like(score, -torch.inf)
        past[..., 0] = 0.0
        return torch.where(inside, score, past).expand_as(self.counts)

    def decide(self, t: int, choice: Tensor) -> None:
        """Give token t its topics, (B, K)."""
        inside = self.inside[:, t, None].expand(choice.shape)
        one = widened(inside)[..., None]
        if t in self.decided:
            self.counts.scatter_add_(2, self.topics[..., t, None], -one)
        choice = choice.masked_fill(~inside, 0)
        self.counts.scatter_add_(2, choice[..., None], one)
        self.topics[..., t] = choice
        self.decided.add(t)


def gathered(scores: Tensor, topics: Tensor, inside: Tensor) -> Tensor:
    """Sum the scores of the chosen topics: (B, T, N), (B, K, T) -> (B, K)."""
    each = scores[:, None].expand(-1, topics.shape[1], -1, -1)
    chosen = each.gather(3, topics[..., None])[..., 0]
    return chosen.masked_fill(~inside[:, None], 0.0).sum(-1)
