"""An LSTM language model without latents: exact p(x)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.models.recurrent import LSTM
from lm_latent_eval.models.recurrent_lm import RecurrentConfig, RecurrentLM


class LSTMConfig(RecurrentConfig):
    """Configuration of an LSTM language model."""

    model_type = "latent_eval_lstm"

    # transformers gives a class without one of its own that of a dataclass.
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class LSTMLanguageModel(RecurrentLM):
    """p(x) of a stack of LSTM layers, with a softmax over all words."""

    config_class = LSTMConfig
    cell = staticmethod(LSTM)
    config: LSTMConfig

    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word after each state: (N, D), (N,) -> (N,) nats."""
        return self.log_probs(hidden).gather(-1, words[:, None])[:, 0]

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word after each state: (N, D) -> (N, V) nats."""
        scores = F.linear(hidden, self.embeddings.weight, self.bias)
        never = sent(torch.tensor(self.config.never_uttered).long(), scores.device)
        return scores.index_fill(-1, never, -torch.inf).log_softmax(-1)
