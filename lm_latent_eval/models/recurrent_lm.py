"""Base class of recurrent language models without latents.

    p(x) = prod_t p(x_t | x_<t)

With nothing to sum over, one "sample" of weight p(x) is exact: every estimator, task
and table that takes a latent LM takes these models beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import NO_LATENT, Normalization, Uniforms
from lm_latent_eval.models.no_latents import NoLatents
from lm_latent_eval.models.pretrained import CheckedConfig, Pretrained, value
from lm_latent_eval.models.recurrent import Carry, RecurrentStack, initialise
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START, UNKNOWN
from lm_latent_eval.values import Each, Share, Whole

TABLE = 1 << 24
"""Scores (tokens x words) held at a time."""


class RecurrentConfig(CheckedConfig):
    """Configuration of a recurrent language model.

    Args:
        vocab_size: V, words the model can utter.
        num_words: V plus words that are known but never uttered.
        embedding_dim: Size of the embeddings, shared with the output layer.
        hidden_size: Of the inner layers.
        num_layers: Recurrent layers.
        never_uttered: Words excluded from prediction (padding and start).
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text.
    """

    vocab_size: int = value(4, Whole(4))
    num_words: int = value(None, Whole("vocab_size"))
    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(256, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    never_uttered: list[int] = value([0, 2], Each(Whole(0, below="vocab_size")))
    dropout: float = value(0.0, Share())
    num_unknown_types: int = value(0, Whole(0))


@dataclass(frozen=True)
class Encoded:
    """What every position is predicted from."""

    batch: TokenBatch
    hidden: Tensor
    """(B, T, embedding_dim)."""
    carry: Carry


class RecurrentLM(Pretrained, ABC):
    """p(x) of a stack of recurrent layers; z is always ()."""

    cell: ClassVar[Any]
    """What builds a layer of its sizes."""
    base_model_prefix = "recurrent"
    main_input_name = "inputs"
    estimators = ("exact", "is", "beam")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("none",)
    """What ``proposal`` can return."""
    exact_proposal = "none"
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        inner = [config.hidden_size] * (config.num_layers - 1)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        sizes = [config.embedding_dim, *inner, config.embedding_dim]
        self.rnn = RecurrentStack(sizes, config.dropout, self.cell)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)

    @property
    def normalization(self) -> Normalization:
        """What its probabilities of all texts total."""
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return Normalization.ONE if excluded else Normalization.BELOW_ONE

    @abstractmethod
    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word after each state: (N, D), (N,) -> (N,) nats."""

    @abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word after each state: (N, D) -> (N, V) nats."""

    def num_latents(self, num_words: int) -> int:
        """Return 1: there is nothing to sum over."""
        return 1

    def log_marginal(self, words: Tensor) -> Tensor:
        """Return log p of texts of one length; see ``Enumerable``."""
        batch = TokenBatch.collate(words.tolist(), first=START, device=words.device)
        return self.log_joint(self.encode(batch), NO_LATENT)[:, 0]

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        known = batch.inputs.masked_fill(
            batch.inputs >= self.config.vocab_size, UNKNOWN
        )
        hidden, carry = self.rnn(self.embeddings(known), batch.length, after)
        return Encoded(batch, hidden, carry)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: Carry | None
    ) -> Encoded:
        """Return what was read, with the targets that it now has."""
        return replace(encoded, batch=batch)

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """Return log p(x) in nats, once for each of K empty latents, (B, K)."""
        batch = encoded.batch
        known = batch.targets.masked_fill(
            batch.targets >= self.config.vocab_size, UNKNOWN
        )
        inside = batch.inside
        cost = batch.unknown_log_prob.masked_fill(known != UNKNOWN, 0.0)
        at_once = max(1, TABLE // self.config.vocab_size)
        parts = [
            widened(self.log_prob(hidden, words))
            for hidden, words in zip(
                encoded.hidden[inside].split(at_once),
                known[inside].split(at_once),
                strict=True,
            )
        ]
        log_p = torch.zeros_like(cost).masked_scatter(inside, torch.cat(parts))
        total = (log_p + cost).masked_fill(~inside, 0.0).sum(-1)
        return total[:, None].expand(-1, latents.shape[1])

    def advance(self, encoded: Encoded, latents: Tensor) -> Carry:
        """Return the recurrent state after the piece."""
        return encoded.carry

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        first = self.log_probs(encoded.hidden[:, 0])
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> NoLatents:
        """Return the only one: there is nothing to propose."""
        return NoLatents()
