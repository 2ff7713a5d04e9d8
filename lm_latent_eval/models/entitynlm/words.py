r"""How a token is worded: p(x_t | h, g), g the slot of the latest mention's entity.

.. math:: p(x_t = v \mid h, g) \propto e^{(W_v (h + W_o g) + b)_v}

A word outside the vocabulary is the unknown word, at the price (``unknown_log_prob``)
that the caller puts on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.factored import log_softmax_at
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import UNKNOWN

NUMBERS = 1 << 23
"""Scores (tokens x V), numbers of vectors, held at a time."""
BAND = 32
"""Places that share the scores of their contexts."""


@dataclass(frozen=True)
class Tangents:
    r"""A bound of log p(x_t | h_t, g) at P places, by its tangents at some contexts a.

    .. math::
        \log p(x_t \mid h_t, g) \le \min_a \,
        \log p(x_t \mid h_t, a) + (g - a) \, \nabla_a \log p(x_t \mid h_t, a)

    log p is concave in g: a linear score less the logarithm of a sum of exponentials.
    """

    value: Tensor
    """At g = 0, in nats, (P, A)."""
    slope: Tensor
    """(P, A, D)."""

    def __call__(self, place: Tensor, contexts: Tensor) -> Tensor:
        """Bound log p under N contexts a place: (R,), (R, N, D) -> (R, N) nats."""
        rise = torch.einsum("rad,rnd->rna", self.slope[place], contexts)
        return (self.value[place, None] + rise).amin(-1)


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
        state = hidden + self.entity(context)
        return F.linear(state, self.output_weight, self._bias).log_softmax(-1)

    @property
    def _bias(self) -> Tensor:
        """b, ``-inf`` for words that are never uttered, (V,)."""
        never = sent(torch.tensor(self.config.never_uttered).long(), self.bias.device)
        return self.bias.index_fill(0, never, -torch.inf)

    def tangents(self, hidden: Tensor, batch: TokenBatch, at: Tensor) -> Tangents:
        r"""Return the tangents of log p(x_t | h, g) at some contexts g.

        .. math::
            \nabla_g \log p(x_t \mid h, g) =
            W_o^\top \big(W_{x_t} - \sum_v p(v \mid h, g) \, W_v\big)

        Args:
            hidden: h, (B, T, D).
            batch: The tokens.
            at: Contexts, (A, D).
        """
        target, hidden = self._uttered(batch).flatten(), hidden.flatten(0, 1)
        at_once = max(1, NUMBERS // self.config.vocab_size)
        value, slope = [], []
        for context in at:
            parts = [
                self._tangent(h, x, context.expand_as(h))
                for h, x in zip(
                    hidden.split(at_once), target.split(at_once), strict=True
                )
            ]
            log_p, gradient = (torch.cat(part) for part in zip(*parts, strict=True))
            value.append(log_p - gradient @ context)
            slope.append(gradient)
        return Tangents(torch.stack(value, 1), torch.stack(slope, 1))

    def _tangent(
        self, hidden: Tensor, target: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log p(x | h, g), (N,), and its gradient in g, (N, D).

        Of a word that is never uttered it is 0: no context is better than another.
        """
        log_p = self.log_words(hidden, context)
        difference = self.output_weight[target] - log_p.exp() @ self.output_weight
        log_p = log_p.gather(1, target[:, None])[:, 0].nan_to_num(neginf=0.0)
        return log_p, difference @ self.entity.weight

    def _uttered(self, batch: TokenBatch) -> Tensor:
        """Replace words that cannot be uttered by the unknown word, (B, T)."""
        return batch.targets.masked_fill(
            batch.targets >= self.config.vocab_size, UNKNOWN
        )

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
        target = self._uttered(batch)
        cost = batch.unknown_log_prob.masked_fill(target != UNKNOWN, 0.0)
        b, k, t = batch.inside[:, None].expand(which.shape).nonzero(as_tuple=True)
        place, which = b * batch.targets.shape[1] + t, which[b, k, t]
        _, mark = fingerprints(vectors)[which].unique(return_inverse=True)
        # Of equal vectors one stands for all.
        one = which.new_full((len(vectors),), len(vectors))
        one = one.scatter_reduce(0, mark, which, "amin")
        pairs, pair = (place * len(vectors) + one[mark]).unique(return_inverse=True)
        place, vector = pairs // len(vectors), pairs % len(vectors)
        hidden, target, cost = hidden.flatten(0, 1), target.flatten(), cost.flatten()
        log_p = self._log_prob(hidden, target, vectors, place, vector)
        log_p = widened(log_p) + cost[place]
        zeros = log_p.new_zeros(shape)
        return zeros.index_put((b, k, t), log_p[pair])

    def _log_prob(
        self,
        hidden: Tensor,
        target: Tensor,
        vectors: Tensor,
        place: Tensor,
        vector: Tensor,
    ) -> Tensor:
        """Return log p(x_t | h, g) of distinct pairs of a place and a context, (N,).

        Places that lie together share their contexts. Where they and their contexts
        are fewer than the pairs of them, each is scored over all words once.

        Args:
            hidden: h, (P, D).
            target: x, (P,).
            vectors: Contexts, (M, D).
            place: Of each pair, ascending, (N,).
            vector: Of each pair, (N,).
        """
        weight, at_once = self.output_weight, max(1, NUMBERS // self.config.vocab_size)
        log_p = hidden.new_full((len(place),), torch.nan)
        bands = (place // BAND).bincount().tolist()
        for band in torch.arange(len(place), device=place.device).split(bands):
            places, row = place[band].unique(return_inverse=True)
            contexts, column = vector[band].unique(return_inverse=True)
            if len(band) <= len(places) + len(contexts):
                continue
            word, scores = target[places], F.linear(hidden[places], weight, self._bias)
            table = [
                log_softmax_at(word, scores, F.linear(self.entity(some), weight))
                for some in vectors[contexts].split(at_once)
            ]
            log_p[band] = torch.cat(table, 1)[row, column]
        (rest,) = log_p.isnan().nonzero(as_tuple=True)
        place, vector = place[rest], vector[rest]
        parts = [
            self.log_words(hidden[p], vectors[v]).gather(1, target[p, None])[:, 0]
            for p, v in zip(place.split(at_once), vector.split(at_once), strict=True)
        ]
        return log_p.index_copy(0, rest, torch.cat(parts))


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
