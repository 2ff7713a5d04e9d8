"""Word embeddings, and p(word | state) by one softmax or an adaptive one.

An adaptive softmax keeps frequent words in its head, with one entry for each cluster of
rarer ones, whose own softmax divides what the head gave the cluster. The original's
head lists its clusters the last one first.
Source: Grave et al. (2017), as in the code of Transformer-XL.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.text.words import UNKNOWN

ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Words(nn.Module):
    """Embeds words, and predicts them from vectors of a size."""

    def __init__(self, config: RelationConfig, inner: int) -> None:
        """Build the layers; ``inner`` is the size of what words are predicted from."""
        super().__init__()
        self.config = config
        size, dim = config.vocab_size, config.predictor_dim
        self.embedding = nn.Embedding(size, config.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(size))
        if not config.tie_weights:
            self.weight = nn.Parameter(torch.zeros(size, dim))
        elif dim != config.embedding_dim:
            raise ValueError(
                f"tie_weights needs predictor_dim={dim} to be embedding_dim="
                f"{config.embedding_dim}"
            )
        if not config.cutoffs:
            self.inner = nn.Linear(inner, dim)
            self.activation = ACTIVATIONS[config.activation]()
            return
        clusters = len(config.cutoffs)
        self.cluster_weight = nn.Parameter(torch.zeros(clusters, dim))
        self.cluster_bias = nn.Parameter(torch.zeros(clusters))
        same = inner == dim
        self.projections = nn.ParameterList(
            torch.zeros(inner, dim) for _ in range(0 if same else clusters + 1)
        )

    def embed(self, words: Tensor) -> Tensor:
        """Embed words; those that can only be copied are unknown."""
        embedded: Tensor = self.embedding(self.known(words))
        if self.config.cutoffs:
            return embedded * math.sqrt(self.config.embedding_dim)
        return embedded

    def known(self, words: Tensor) -> Tensor:
        """Map words that can only be copied to the unknown one."""
        return words.masked_fill(words >= self.config.vocab_size, UNKNOWN)

    @property
    def output(self) -> Tensor:
        """The output layer's weight, (V, predictor_dim)."""
        if self.config.tie_weights:
            return self.embedding.weight
        return self.weight

    def log_prob(self, value: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word each: (N, inner), (N,) -> (N,) nats."""
        log_p = self.log_probs(value)
        return log_p.gather(-1, self.known(words)[:, None])[:, 0]

    def log_probs(self, value: Tensor) -> Tensor:
        """Return log p of every word: (N, inner) -> (N, V) nats."""
        never = sent(torch.tensor(self.config.never_uttered).long(), value.device)
        if not self.config.cutoffs:
            scores = F.linear(
                self.activation(self.inner(value)), self.output, self.bias
            )
            return scores.index_fill(-1, never, -torch.inf).log_softmax(-1)
        return self._adaptive(value, never)

    def _adaptive(self, value: Tensor, never: Tensor) -> Tensor:
        first, *_ = borders = [*self.config.cutoffs, self.config.vocab_size]
        weight = torch.cat([self.output[:first], self.cluster_weight])
        bias = torch.cat([self.bias[:first], self.cluster_bias])
        scores = F.linear(self._projected(value, 0), weight, bias)
        head = scores.index_fill(-1, never, -torch.inf).log_softmax(-1)
        parts = [head[:, :first]]
        for j, (start, end) in enumerate(pairwise(borders)):
            tail = F.linear(
                self._projected(value, j + 1),
                self.output[start:end],
                self.bias[start:end],
            )
            parts.append(head[:, [-1 - j]] + tail.log_softmax(-1))
        return torch.cat(parts, -1)

    def _projected(self, value: Tensor, cluster: int) -> Tensor:
        if not len(self.projections):
            return value
        projected: Tensor = value @ self.projections[cluster]
        return projected
