"""The network of p and of each q: LSTM states and scores of every chain step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.models.entitynlm.chain import Steps
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.words import Tangents
from lm_latent_eval.models.recurrent import Carry, RecurrentStack
from lm_latent_eval.text.words import UNKNOWN


class Trunk(nn.Module):
    """Embeddings, recurrent layers and the heads of ``chain``."""

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
        """Run over tokens; return hidden states (B, T, D) and the new state."""
        known = tokens.masked_fill(tokens >= self.config.vocab_size, UNKNOWN)
        hidden, carry = self.rnn(self.token_embeddings(known), length, carry)
        return hidden, carry

    @property
    def first_slot(self) -> Tensor:
        """How every slot begins, (D,); without the originals' noise of 1e-4."""
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
        """Score the steps of every place.

        Args:
            hidden: What each decision is taken from, (B, T, D).
            update: What the entity of the token before it moves towards, (B, T, D).
            begin: When each text's first decision falls, on the host, (B,).
            lag: How much earlier than the decision ``update`` was read.
            twist: What p says of each token under a context.
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
