"""Recurrent language models without latents: an LSTM, or Elman's network.

    p(x) = prod_t p(x_t | x_<t),    p(x_{t+1} | x_<=t) = softmax(E h_t + b)

With nothing to sum over, one "sample" of weight p(x) is exact: every estimator, task
and table that takes a latent LM takes these models beside it. Elman's simple recurrent
network (``cell="rnn"``) is the one of the RNNLM toolkit,

    h_t = sigma(W x_t + U h_{t-1} + b)

Symbols: W, U, b -> ``rnn``; E, the embeddings of the inputs as well -> ``embeddings``.
Departures of the second: a softmax over all words, without classes of words, which save
time and move no probability from one model to another; one matrix of embeddings (there
are two); every text starts from h_0 = 0 (there, from where the one before it ended).
Source: Mikolov et al. (2011), "Extensions of recurrent neural network language model".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.ragged import in_parts
from lm_latent_eval.latent import NO_LATENT, Uniforms
from lm_latent_eval.models.pretrained import TrainedConfig, TrainedModel, value
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.models.recurrent import LSTM, Carry, Elman, RecurrentStack
from lm_latent_eval.text.batch import TokenBatch, excluding, known_ids
from lm_latent_eval.text.words import START
from lm_latent_eval.values import OneOf, Whole

CELLS: Mapping[str, Any] = {"lstm": LSTM, "rnn": Elman}
"""Name -> class of a recurrent layer."""


class LSTMConfig(TrainedConfig):
    """Configuration of a recurrent language model.

    Args:
        embedding_dim: Size of the embeddings, shared with the output layer.
        hidden_size: Size of the inner layers.
        num_layers: Number of recurrent layers.
        cell: Kind of the layers: ``lstm``, or ``rnn`` for Elman's.
    """

    model_type = "latent_eval_lstm"
    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(256, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    cell: str = value("lstm", OneOf(*CELLS))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a file; those of version 0.3 name no cell, and are of LSTMs."""
        return super().from_dict({"cell": "lstm", **config_dict}, **kwargs)


@dataclass(frozen=True)
class Encoded:
    """Hidden states, (B, T, embedding_dim), from which each token is predicted."""

    batch: TokenBatch
    hidden: Tensor
    carry: Carry


class LSTMLanguageModel(TrainedModel):
    """p(x) of a stack of recurrent layers; z is always ()."""

    config_class = LSTMConfig
    base_model_prefix = "recurrent"
    main_input_name = "inputs"
    estimators = ("exact", "is", "beam")
    """Supported estimators, the default first."""
    proposal_names = ("none",)
    exact_proposal = "none"
    config: LSTMConfig

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        inner = [config.hidden_size] * (config.num_layers - 1)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        sizes = [config.embedding_dim, *inner, config.embedding_dim]
        self.rnn = RecurrentStack(sizes, config.dropout, CELLS[config.cell])
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()  # type: ignore[no-untyped-call]

    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log p of one word after each state: (N, D), (N,) -> (N,) nats."""
        return self.log_probs(hidden).gather(-1, words[:, None])[:, 0]

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log p of every word after each state: (N, D) -> (N, V) nats."""
        scores = F.linear(hidden, self.embeddings.weight, self.bias)
        return excluding(scores, self.config.never_uttered).log_softmax(-1)

    def num_latents(self, num_words: int) -> int:
        return 1

    def log_marginal(self, words: Tensor) -> Tensor:
        """Log p of texts of one length; see ``LatentLM``."""
        batch = TokenBatch.collate(words.tolist(), first=START, device=words.device)
        return self.log_joint(self.encode(batch), NO_LATENT)[:, 0]

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        words = known_ids(batch.inputs, self.config.vocab_size)
        hidden, carry = self.rnn(self.embeddings(words), batch.length, after)
        return Encoded(batch, hidden, carry)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: Carry | None
    ) -> Encoded:
        return replace(encoded, batch=batch)

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """Log p(x) in nats, once for each of K empty latents, (B, K)."""
        batch = encoded.batch
        word, cost = batch.uttered(self.config.vocab_size)
        inside = batch.inside
        width, columns = self.config.vocab_size, (encoded.hidden[inside], word[inside])
        parts = [widened(self.log_prob(*part)) for part in in_parts(width, *columns)]
        log_p = torch.zeros_like(cost).masked_scatter(inside, torch.cat(parts))
        total = (log_p + cost).masked_fill(~inside, 0.0).sum(-1)
        return total[:, None].expand(-1, latents.shape[1])

    def advance(self, encoded: Encoded, latents: Tensor) -> Carry:
        return encoded.carry

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        first = self.log_probs(encoded.hidden[:, 0])
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> NoLatents:
        return NoLatents()
