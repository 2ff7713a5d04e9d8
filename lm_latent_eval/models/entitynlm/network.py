r"""The networks of p and q: LSTM states, scores of chain steps, and words.

.. math:: p(x_t = v \mid h, g) \propto e^{(W_v (h + W_o g) + b)_v}

g is the slot of the latest mention's entity. A word outside the vocabulary is the
unknown word, at the price (``unknown_log_prob``) that the caller puts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import in_parts
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.latents import Steps, Versions, marked
from lm_latent_eval.models.recurrent import Carry, RecurrentStack
from lm_latent_eval.text.batch import TokenBatch, excluding, known_ids

BAND = 32
"""Number of adjacent positions that share the scores of their contexts."""


@dataclass(frozen=True)
class Tangents:
    r"""Upper bound of log p(x_t | h_t, g) at P positions, by tangents at contexts a.

    .. math::
        \log p(x_t \mid h_t, g) \le \min_a \,
        \log p(x_t \mid h_t, a) + (g - a) \, \nabla_a \log p(x_t \mid h_t, a)

    log p is concave in g: a linear score less the logarithm of a sum of exponentials.
    """

    value: Tensor
    """Values at g = 0, in nats, (P, A)."""
    slope: Tensor
    """Gradients, (P, A, D)."""

    def __call__(self, position: Tensor, contexts: Tensor) -> Tensor:
        """Bound log p under C contexts a position: (N,), (N, C, D) -> (N, C) nats."""
        rise = self.slope[position] @ contexts.transpose(1, 2)
        return (self.value[position][..., None] + rise).amin(1)


class Words(nn.Module):
    """Distribution of a token given its hidden state and its context."""

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
        return self.tokens[0].weight if self.config.tie_weights else self.weight

    def log_words(self, hidden: Tensor, context: Tensor) -> Tensor:
        """Log p(v | h, g) of every word v, (N, D) twice -> (N, V) nats."""
        state = hidden + self.entity(context)
        return F.linear(state, self.output_weight, self._bias).log_softmax(-1)

    @property
    def _bias(self) -> Tensor:
        return excluding(self.bias, self.config.never_uttered)

    def tangents(self, hidden: Tensor, batch: TokenBatch, at: Tensor) -> Tangents:
        r"""Tangents of log p(x_t | h, g) at given contexts g.

        .. math::
            \nabla_g \log p(x_t \mid h, g) =
            W_o^\top \big(W_{x_t} - \sum_v p(v \mid h, g) \, W_v\big)

        Args:
            hidden: h, (B, T, D).
            batch: The tokens.
            at: Contexts, (A, D).
        """
        target, _ = batch.uttered(self.config.vocab_size)
        target, hidden = target.flatten(), hidden.flatten(0, 1)
        value, slope = [], []
        for context in at:
            parts = [
                self._tangent(h, x, context.expand_as(h))
                for h, x in in_parts(self.config.vocab_size, hidden, target)
            ]
            log_p, gradient = (torch.cat(part) for part in zip(*parts, strict=True))
            value.append(log_p - gradient @ context)
            slope.append(gradient)
        return Tangents(torch.stack(value, 1), torch.stack(slope, 1))

    def _tangent(
        self, hidden: Tensor, target: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log p(x | h, g), (N,), and its gradient in g, (N, D).

        Excluded words have log p 0: all contexts are equally good.
        """
        log_p = self.log_words(hidden, context)
        difference = self.output_weight[target] - log_p.exp() @ self.output_weight
        log_p = log_p.gather(1, target[:, None])[:, 0].nan_to_num(neginf=0.0)
        return log_p, difference @ self.entity.weight

    def log_prob(
        self, hidden: Tensor, batch: TokenBatch, versions: Versions, which: Tensor
    ) -> Tensor:
        """Log p(x_t | z_t, ..) in nats, (B, K, T) float64; 0 past the end.

        Each token is scored once for all chains with equal contexts.

        Args:
            hidden: h, (B, T, D).
            batch: The tokens.
            versions: Contexts.
            which: Version of each token, -1 past the end, (B, K, T), on the host.
        """
        num_tokens, device = which.shape[2], hidden.device
        b, k, t = (which >= 0).nonzero(as_tuple=True)
        shape, which = which.shape, which[b, k, t]
        # One of the equal vectors of a text represents all.
        _, mark = marked(versions.mark[which], b).unique(return_inverse=True)
        size = len(versions.vectors)
        first = which.new_full((size,), size).scatter_reduce(0, mark, which, "amin")
        pairs, pair = ((b * num_tokens + t) * size + first[mark]).unique(
            return_inverse=True
        )
        position, vector = pairs // size, pairs % size
        target, cost = batch.uttered(self.config.vocab_size)
        log_p = widened(self._log_pairs(hidden, target, versions, position, vector))
        log_p = log_p + cost.flatten()[sent(position, device)]
        zeros = log_p.new_zeros(shape)
        index = [sent(x, device) for x in (b, k, t)]
        return zeros.index_put(tuple(index), log_p[sent(pair, device)])

    def _log_pairs(
        self,
        hidden: Tensor,
        target: Tensor,
        versions: Versions,
        position: Tensor,
        vector: Tensor,
    ) -> Tensor:
        """Log p(x_t | h, g) of distinct pairs of a position and a context, (N,).

        Args:
            hidden: h, (B, T, D).
            target: x, (B, T).
            versions: Contexts.
            position: Position of each pair, ascending, on the host, (N,).
            vector: Context of each pair, on the host, (N,).
        """
        num_tokens = hidden.shape[1]
        states, targets = hidden.flatten(0, 1), target.flatten()
        if num_tokens == 1:  # nothing is shared
            return self._log_each(states, targets, versions, position, vector)
        counts = (position // num_tokens).bincount(minlength=len(hidden)).tolist()
        parts = [
            self._log_shared(h, x, versions, positions % num_tokens, vectors)
            for h, x, positions, vectors in zip(
                hidden,
                target,
                position.split(counts),
                vector.split(counts),
                strict=True,
            )
        ]
        log_p = torch.cat(parts)
        rest = log_p.isnan().cpu().nonzero()[:, 0]
        alone = self._log_each(states, targets, versions, position[rest], vector[rest])
        return log_p.index_copy(0, sent(rest, log_p.device), alone)

    def _log_each(
        self,
        hidden: Tensor,
        target: Tensor,
        versions: Versions,
        position: Tensor,
        vector: Tensor,
    ) -> Tensor:
        """Score each pair by itself, (N,)."""
        parts = []
        for part in in_parts(self.config.vocab_size, position, vector):
            p, v = (sent(index, hidden.device) for index in part)
            log_words = self.log_words(hidden[p], versions.vectors[v])
            parts.append(log_words.gather(1, target[p, None])[:, 0])
        return torch.cat(parts)

    def _log_shared(
        self,
        hidden: Tensor,
        target: Tensor,
        versions: Versions,
        position: Tensor,
        vector: Tensor,
    ) -> Tensor:
        """Score pairs of a text in bands that share positions; NaN elsewhere.

        A band whose positions and contexts are together fewer than its pairs scores
        each of them over all words once.
        """
        weight = self.output_weight
        log_p, device = hidden.new_full((len(position),), torch.nan), hidden.device
        ends = (position // BAND).bincount().cumsum(0).tolist()
        for start, end in pairwise([0, *ends]):
            positions, row = position[start:end].unique(return_inverse=True)
            contexts, column = vector[start:end].unique(return_inverse=True)
            if end - start <= len(positions) + len(contexts):
                continue
            positions = sent(positions, device)
            scores = F.linear(hidden[positions], weight, self._bias)
            table = []
            for (part,) in in_parts(self.config.vocab_size, contexts):
                context = self.entity(versions.vectors[sent(part, device)])
                table.append(
                    log_softmax_at(target[positions], scores, F.linear(context, weight))
                )
            log_p[start:end] = torch.cat(table, 1)[
                sent(row, device), sent(column, device)
            ]
        return log_p


def log_softmax_at(column: Tensor, p: Tensor, q: Tensor) -> Tensor:
    r"""Log-probability of one word a position under each context.

    .. math::
        \log p_{tg}(v) = P_{tv} + Q_{gv} - \log \sum_u e^{P_{tu}} \, e^{Q_{gu}}

    The sums of N positions under M contexts are a product of two matrices: N + M rows
    of exponentials instead of N M.

    Exponentials are taken of scores less the maximum of their row. V of them may
    underflow, each below the type's least normal number. A sum that these could change
    by more than its last digit is NaN.

    Args:
        column: v of each position, (N,).
        p: Scores of the positions, (N, V), nats; ``-inf`` for excluded words.
        q: Scores of the contexts, (M, V), nats.

    Returns:
        Nats, (N, M); NaN where the sum is too small.

    Example:
        >>> p = torch.tensor([[60.0, -60.0]])
        >>> q = torch.tensor([[0.0, 1.0], [-60.0, 60.0]])
        >>> log_softmax_at(torch.tensor([0]), p, q)
        tensor([[0., nan]])
    """
    shift_p, shift_q = p.amax(1, keepdim=True), q.amax(1, keepdim=True)
    sums = (p - shift_p).exp_() @ (q - shift_q).exp_().T
    limits = torch.finfo(p.dtype)
    sums = sums.masked_fill(sums < p.shape[1] * limits.tiny / limits.eps, torch.nan)
    at = p.gather(1, column[:, None]) + q.T[column]
    return at - (sums.log() + shift_p + shift_q.T)


class Trunk(nn.Module):
    """Embeddings, recurrent layers and the heads of a chain's steps."""

    def __init__(self, config: EntityNLMConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.embedding_dim
        inner = [config.hidden_size] * (config.num_layers - 1)
        self.token_embeddings = nn.Embedding(config.vocab_size, dim)
        self.rnn = RecurrentStack([dim, *inner, dim], config.dropout)
        self.mention = nn.Linear(dim, 2, bias=False)  # R
        self.slot = nn.Linear(dim, dim, bias=False)  # W_e
        self.gate = nn.Linear(dim, dim, bias=False)  # W_d
        self.distance = nn.Parameter(torch.zeros(()))  # lambda
        self.length = nn.Linear(2 * dim, config.max_mention_length)

    def read(
        self, tokens: Tensor, length: Tensor, carry: Carry | None
    ) -> tuple[Tensor, Carry]:
        """Hidden states (B, T, D) over tokens, and the new state."""
        ids = known_ids(tokens, self.config.vocab_size)
        hidden, carry = self.rnn(self.token_embeddings(ids), length, carry)
        return hidden, carry

    @property
    def first_slot(self) -> Tensor:
        """Initial vector of every slot, (D,); without the originals' noise of 1e-4."""
        return F.normalize(self.mention.weight[1], dim=-1)

    def steps(
        self,
        hidden: Tensor,
        update: Tensor,
        begin: Tensor,
        *,
        lag: int,
        twist: Tangents | None = None,
    ) -> Steps:
        """Score the steps of every position.

        Args:
            hidden: State that each decision is taken from, (B, T, D).
            update: State that the previous token's entity moves towards, (B, T, D).
            begin: Time of each text's first decision, on the host, (B,).
            lag: Number of tokens between reading ``update`` and the decision.
            twist: Bound of log p of each token under a context.
        """
        dim, num_tokens = hidden.shape[-1], hidden.shape[1]
        text_weight, slot_weight = self.length.weight.split(dim, -1)
        time = begin[:, None] + torch.arange(num_tokens)
        hidden, update = hidden.flatten(0, 1), update.flatten(0, 1)
        return Steps(
            mention=self.mention(hidden).log_softmax(-1),
            query=hidden @ self.slot.weight,
            length=F.linear(hidden, text_weight, self.length.bias),
            length_weight=slot_weight,
            distance=self.distance,
            update=update,
            update_query=update @ self.gate.weight,
            time=sent(time.flatten(), hidden.device),
            lag=lag,
            num_tokens=num_tokens,
            twist=twist,
        )
