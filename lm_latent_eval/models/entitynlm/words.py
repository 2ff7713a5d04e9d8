r"""How a token is worded: p(x_t | h, g), g the slot of the latest mention's entity.

.. math:: p(x_t = v \mid h, g) \propto e^{(W_v (h + W_o g) + b)_v}

A word outside the vocabulary is the unknown word, at the price (``unknown_log_prob``)
that the caller puts on it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import UNKNOWN

NUMBERS = 1 << 23
"""Scores (tokens x V) held at a time."""


class Words(nn.Module):
    """The distribution of a token given its place's state and its context."""

    def __init__(self, config: EntityNLMConfig, token_embeddings: nn.Embedding) -> None:
        """Build the layers; the output layer may share the token embeddings."""
        super().__init__()
        dim = config.embedding_dim
        self.config = config
        self.tokens = [token_embeddings]  # in a list: owned, and saved, elsewhere
        self.entity = nn.Linear(dim, dim, bias=False)  # W_o
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        if not config.tie_weights:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, dim))

    @property
    def output_weight(self) -> Tensor:
        """W_v, (V, D)."""
        return self.tokens[0].weight if self.config.tie_weights else self.weight

    def log_words(self, hidden: Tensor, context: Tensor) -> Tensor:
        """Return log p(v | h, g) of every word v, (N, D) twice -> (N, V) nats."""
        scores = F.linear(hidden + self.entity(context), self.output_weight, self.bias)
        if self.config.never_uttered:
            never = torch.tensor(self.config.never_uttered, device=scores.device)
            scores = scores.index_fill(-1, never, -torch.inf)
        return scores.log_softmax(-1)

    def log_prob(
        self,
        hidden: Tensor,
        batch: TokenBatch,
        entity: Tensor,
        contexts: tuple[Tensor, Tensor],
        *,
        one_past: bool,
    ) -> Tensor:
        """Return log p(x_t | z_t, ..) in nats, (B, K, T) float64; 0 past the end.

        Chains that have mentioned the same entities so far share their context, and
        each token is scored once for all of them.

        Args:
            hidden: h, (B, T, D).
            batch: The tokens.
            entity: Of the chains, (B, K, T).
            contexts: Vectors, and which of them each token has, (B, K, T).
            one_past: Whether all chains of a text had the same past.
        """
        alike = first_alike(entity, one_past=one_past)
        own = torch.arange(entity.shape[1], device=entity.device)[:, None] == alike
        b, k, t = (own & batch.inside[:, None]).nonzero(as_tuple=True)
        unknown = batch.targets >= self.config.vocab_size
        target = batch.targets.masked_fill(unknown, UNKNOWN)
        cost = batch.unknown_log_prob.masked_fill(target != UNKNOWN, 0.0)
        vectors, which = contexts
        at_once = max(1, NUMBERS // self.config.vocab_size)
        parts = [
            self.log_words(hidden[bb, tt], vectors[which[bb, kk, tt]])
            .gather(1, target[bb, tt, None])[:, 0]
            .double()
            + cost[bb, tt]
            for bb, kk, tt in zip(
                b.split(at_once), k.split(at_once), t.split(at_once), strict=True
            )
        ]
        zeros = hidden.new_zeros(entity.shape, dtype=torch.float64)
        scored = zeros.index_put((b, k, t), torch.cat(parts))
        return scored.gather(1, alike)


def first_alike(entity: Tensor, *, one_past: bool) -> Tensor:
    """Return the first chain of the text with the same entities up to each token.

    Args:
        entity: Of the chains, (B, K, T).
        one_past: Whether all chains had the same past; else each is like itself alone.

    Returns:
        Indices of chains, (B, K, T).

    Example:
        >>> first_alike(torch.tensor([[[0, 1], [0, 2], [0, 1]]]), one_past=True)
        tensor([[[0, 0], [0, 1], [0, 0]]])
    """
    batch, samples, num_tokens = entity.shape
    own = torch.arange(samples, device=entity.device).repeat(batch, 1)
    alike = own * (not one_past)
    text = torch.arange(batch, device=entity.device)[:, None] * samples
    most = int(entity.max()) + 1 if entity.numel() else 1
    found = []
    for t in range(num_tokens):
        key = (text + alike) * most + entity[..., t]
        groups, group = key.unique(return_inverse=True)
        first = torch.full_like(groups, samples)
        first = first.scatter_reduce(0, group.flatten(), own.flatten(), "amin")
        alike = first[group]
        found.append(alike)
    return torch.stack(found, -1) if found else torch.zeros_like(entity)
