"""An LSTM language model, seen through the seam as a latent LM whose z is always ().

    p(x) = prod_t p(x_t | x_<t)

With nothing to sum over, one "sample" of weight p(x) is exact: every estimator, task
and table that takes a latent LM takes this model beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from lm_latent_eval.latent import Beam, Draws, Mass, Uniforms
from lm_latent_eval.models.recurrent import Carry, LSTMStack, initialise
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START, UNKNOWN


class LSTMConfig(PretrainedConfig):
    """Configuration of an LSTM language model.

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

    model_type = "latent_eval_lstm"

    def __init__(
        self,
        *,
        vocab_size: int = 4,
        num_words: int | None = None,
        embedding_dim: int = 128,
        hidden_size: int = 256,
        num_layers: int = 2,
        never_uttered: list[int] | None = None,
        dropout: float = 0.0,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.embedding_dim = embedding_dim
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.never_uttered = [0, 2] if never_uttered is None else never_uttered
        self.dropout = dropout
        self.num_unknown_types = num_unknown_types
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)


@dataclass(frozen=True)
class Encoded:
    """Log-probabilities of every word at every position."""

    batch: TokenBatch
    log_probs: Tensor
    """(B, T, V), nats."""
    carry: Carry


class LSTMLanguageModel(PreTrainedModel):
    """p(x) of a stack of LSTM layers; its own proposal, since z is always ()."""

    config_class = LSTMConfig
    base_model_prefix = "lstm"
    main_input_name = "inputs"
    estimators = ("exact", "is", "beam")
    """What estimates its likelihoods, the default first."""
    name = "none"
    """Of the proposal that it is."""
    config: LSTMConfig

    def __init__(self, config: LSTMConfig) -> None:
        """Build the layers."""
        super().__init__(config)
        inner = [config.hidden_size] * (config.num_layers - 1)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.rnn = LSTMStack(
            [config.embedding_dim, *inner, config.embedding_dim], config.dropout
        )
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)

    @property
    def mass(self) -> Mass:
        """What its probabilities of all texts total."""
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return Mass.ONE if excluded else Mass.LESS

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        """Predict every token from those before it."""
        known = batch.inputs.masked_fill(
            batch.inputs >= self.config.vocab_size, UNKNOWN
        )
        hidden, carry = self.rnn(self.embeddings(known), batch.length, after)
        scores = F.linear(hidden, self.embeddings.weight, self.bias)
        never = torch.tensor(self.config.never_uttered, device=scores.device)
        scores = scores.index_fill(-1, never, -torch.inf)
        return Encoded(batch, scores.log_softmax(-1), carry)

    def log_joint(self, encoded: Encoded, num_latents: int) -> Tensor:
        """Return log p(x) in nats, once for each of K empty latents, (B, K)."""
        batch = encoded.batch
        known = batch.targets.masked_fill(
            batch.targets >= self.config.vocab_size, UNKNOWN
        )
        log_p = encoded.log_probs.gather(-1, known[..., None])[..., 0].double()
        log_p = log_p + batch.unknown_log_prob.masked_fill(known != UNKNOWN, 0.0)
        total = log_p.masked_fill(~batch.inside, 0.0).sum(-1)
        return total[:, None].expand(-1, num_latents)

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[int]:
        """Draw the empty latent K times, with log q = 0."""
        zeros = encoded.log_probs.new_zeros(
            len(encoded.log_probs), num_samples, dtype=torch.float64
        )
        return Draws(num_samples, zeros)

    def beam(
        self, encoded: Encoded, width: int, log_q: Tensor | None = None
    ) -> Beam[int]:
        """Return the one latent there is."""
        zeros = torch.zeros(len(encoded.log_probs), 1, dtype=torch.float64)
        zeros = zeros.to(encoded.log_probs.device)
        return Beam(1, zeros, zeros.long())

    def advance(self, encoded: Encoded, num_latents: int) -> Carry:
        """Return the recurrent state after the piece."""
        return encoded.carry

    def next_token(self, encoded: Encoded, log_w: Tensor) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        first = encoded.log_probs[:, 0]
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> LSTMLanguageModel:
        """Return the model itself: there is nothing to propose."""
        return self
