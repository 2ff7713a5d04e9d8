"""The network of p and of each q: LSTM states and scores of every decision."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.matching import AliasMatching
from lm_latent_eval.models.kglm.scores import EntityScores, StepScores
from lm_latent_eval.models.kglm.steps import Mention
from lm_latent_eval.models.kglm.words import UNKNOWN
from lm_latent_eval.models.recurrent import Carry, RecurrentStack

HIDDEN_WORDS, HIDDEN_ENTITIES = 0.15, 0.5
"""Shares of words and of entity scores hidden from a smoothing proposal in training: it
must find entities by their names where words and entities are ones it never saw."""


class Trunk(nn.Module):
    """Reads tokens and scores every decision of a walk; p and each q have their own."""

    def __init__(self, config: KGLMConfig, *, both_ways: bool = False) -> None:
        """Build the layers; ``both_ways`` reads what follows a token as well."""
        super().__init__()
        self.config = config
        dt, de = config.token_embedding_dim, config.entity_embedding_dim
        inner = [config.hidden_size] * (config.num_layers - 1)
        sizes = [dt, *inner, dt + 2 * de]
        self.token_embeddings = nn.Embedding(config.vocab_size, dt)
        self.entity_embeddings = nn.Embedding(config.num_entities, de)
        self.relation_embeddings = nn.Embedding(config.num_relations, de)
        self.rnn = RecurrentStack(sizes, config.dropout)
        self.backward_rnn = RecurrentStack(sizes, config.dropout) if both_ways else None
        self.matching = AliasMatching() if both_ways else None
        self.mention = nn.Linear(dt, len(Mention))
        if not config.entity_shortlist:
            self.new_bias = nn.Parameter(torch.zeros(config.num_entities))
            if not config.tie_weights:
                self.new_weight = nn.Parameter(torch.empty(config.num_entities, de))

    def read(
        self, tokens: Tensor, length: Tensor, carry: Carry | None
    ) -> tuple[Tensor, Tensor, Tensor, Carry]:
        """Run over tokens; return h^t, h^h, h^r, each (B, T, .), and the new state."""
        known = tokens.masked_fill(tokens >= self.config.vocab_size, UNKNOWN)
        if self.matching is not None and self.training:
            known = known.masked_fill(
                torch.rand(known.shape, device=known.device) < HIDDEN_WORDS, UNKNOWN
            )
        embedded = self.token_embeddings(known)
        hidden, carry = self.rnn(embedded, length, carry)
        if self.backward_rnn is not None:
            # From the end of this piece: what comes after it is not read.
            after, _ = self.backward_rnn(_reversed(embedded, length), length)
            hidden = hidden + _reversed(after, length)
        dt, de = self.config.token_embedding_dim, self.config.entity_embedding_dim
        text, head, relation = hidden.split([dt, de, de], -1)
        return text, head, relation, carry

    def scores(self, text: Tensor, head: Tensor, relation: Tensor) -> StepScores:
        """Score mention types, new entities, parents and relations, P = B * T rows."""
        text, head, relation = (x.flatten(0, -2) for x in (text, head, relation))
        entities = self.entity_embeddings.weight
        if self.config.entity_shortlist:
            new = EntityScores(head + relation, entities)
        else:
            weight = entities if self.config.tie_weights else self.new_weight
            new = EntityScores(head + relation, weight, self.new_bias)
        if self.matching is not None and self.training:
            new = new.scaled(torch.rand_like(head[:, 0]) > HIDDEN_ENTITIES)
        return StepScores(
            self.mention(text),
            new,
            EntityScores(head, entities),
            F.linear(relation, self.relation_embeddings.weight),
        )


def _reversed(value: Tensor, length: Tensor) -> Tensor:
    """Reverse the real places of each sequence, (B, T, .)."""
    place = torch.arange(value.shape[1], device=value.device)
    mirrored = length[:, None] - 1 - place
    index = torch.where(mirrored >= 0, mirrored, place)
    return value.gather(1, index[..., None].expand_as(value))
