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
"""Scores (tokens x V), numbers of vectors, held at a time."""


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
        never = torch.tensor(self.config.never_uttered, device=hidden.device).long()
        bias = self.bias.index_fill(0, never, -torch.inf)
        scores = F.linear(hidden + self.entity(context), self.output_weight, bias)
        return scores.log_softmax(-1)

    def log_prob(
        self, hidden: Tensor, batch: TokenBatch, contexts: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return log p(x_t | z_t, ..) in nats, (B, K, T) float64; 0 past the end.

        Each token is scored once for all chains whose contexts are the same vector.

        Args:
            hidden: h, (B, T, D).
            batch: The tokens.
            contexts: Vectors (N, D), and which of them each token has, (B, K, T).
        """
        vectors, which = contexts
        shape = which.shape
        unknown = batch.targets >= self.config.vocab_size
        target = batch.targets.masked_fill(unknown, UNKNOWN)
        cost = batch.unknown_log_prob.masked_fill(target != UNKNOWN, 0.0)
        b, k, t = batch.inside[:, None].expand(which.shape).nonzero(as_tuple=True)
        place, which = b * batch.targets.shape[1] + t, which[b, k, t]
        _, mark = fingerprints(vectors)[which].unique(return_inverse=True)
        pairs, pair = (place * len(vectors) + mark).unique(return_inverse=True)
        place = pairs // len(vectors)
        vector = torch.full_like(place, len(vectors))
        vector = vector.scatter_reduce(0, pair, which, "amin")
        hidden, target, cost = hidden.flatten(0, 1), target.flatten(), cost.flatten()
        at_once = max(1, NUMBERS // self.config.vocab_size)
        parts = [
            self.log_words(hidden[some], vectors[v]).gather(1, target[some, None])[:, 0]
            for some, v in zip(place.split(at_once), vector.split(at_once), strict=True)
        ]
        log_p = torch.cat(parts).double() + cost[place]
        zeros = log_p.new_zeros(shape)
        return zeros.index_put((b, k, t), log_p[pair])


def fingerprints(vectors: Tensor) -> Tensor:
    """Return a number for each vector that is the same for equal ones, (N, D) -> (N,).

    Equal means equal in every bit; a 64-bit sum of the bits tells.

    Example:
        >>> a, b, c = fingerprints(torch.tensor([[0.1, 0.2], [0.3, 0.2], [0.1, 0.2]]))
        >>> bool(a == c), bool(a == b)
        (True, False)
    """
    integer = torch.int64 if vectors.dtype == torch.float64 else torch.int32
    bits = vectors.detach().contiguous().view(integer)
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(1 << 62, bits.shape[1:], generator=generator)
    odd = 2 * random.to(bits.device) + 1
    some = bits.split(max(1, NUMBERS // len(odd)))
    return torch.cat([(part.long() * odd).sum(1) for part in some])
