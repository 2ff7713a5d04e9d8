"""The network of NKLM: layers that predict the source and identity of each word.

The network reads a word as its source: one that is copied as its fact and its position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import (
    distinct,
    expand_ranges,
    in_parts,
    segment_logsumexp,
)
from lm_latent_eval.models.lrlm.network import Facts, Words, log_choice, products
from lm_latent_eval.models.lrlm.topics import RelationModel, Topics, to_facts
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Tables, folded
from lm_latent_eval.models.recurrent import Carry, RecurrentStack
from lm_latent_eval.text.words import START, UNKNOWN

LEAST = -100.0
"""Smallest log-probability of the original."""


class NKLMLayers(RelationModel):
    config: NKLMConfig

    def __init__(self, config: NKLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config)
        facts, hidden = config.full_fact_dim, config.hidden_size
        both = hidden + facts
        sizes = [hidden] * config.num_layers
        first = facts + config.embedding_dim + config.position_dim
        self.trunk = RecurrentStack([first, *sizes], config.dropout)
        self.words = Words(config, both)
        self.facts = Facts(config)
        self.no_fact = nn.Parameter(torch.zeros(facts))
        self.position = nn.Embedding(config.num_positions, config.position_dim)
        informed = both if config.knowledge_vector else hidden
        self.to_fact = to_facts(informed, config.fact_hidden, facts)
        self.copy = to_facts(both, config.copy_hidden, 1)
        self.to_position = to_facts(both, config.position_hidden, config.num_positions)
        if not config.oracle:
            self.to_alias = nn.Linear(both, config.alias_dim)
        self.topics = topics

    # -- reading ----------------------------------------------------------------------

    def started(self, batch: int) -> Carry:
        """Recurrent state after the start word of B texts, with one latent each."""
        start = torch.full((batch,), START, device=self.device)
        value = torch.cat(
            [
                self.no_fact.expand(batch, -1),
                self.words.embed(start),
                self.no_fact.new_zeros(batch, self.config.position_dim),
            ],
            -1,
        )
        _, carry = self.trunk(value[:, None], torch.ones_like(start))
        return folded(carry, batch)

    def read(
        self,
        tables: Tables,
        carry: Carry,
        words: Tensor,
        length: Tensor,
        source: Tensor,
        offset: Tensor,
    ) -> tuple[Tensor, Carry]:
        """Read words under K latents a text.

        Args:
            tables: Facts and names.
            carry: Recurrent state of the latents, (B, K, size) each.
            words: Words, on the model's device, (B, T).
            length: Number of words, (B,).
            source: Source of each word, on the host, (B, K, T).
            offset: Index of each word in its name, on the host, (B, K, T).

        Returns:
            Hidden states after each word, (B, K, T, size), and the new recurrent state.
        """
        batch, samples, _ = source.shape
        value = self._inputs(tables, words[:, None].expand_as(source), source, offset)
        rows = length[:, None].expand(batch, samples).flatten()
        carry = carry.each(lambda state: state.flatten(0, 1))
        hidden, carry = self.trunk(value.flatten(0, 1), rows, carry)
        return hidden.unflatten(0, (batch, samples)), folded(carry, batch)

    def _inputs(
        self, tables: Tables, words: Tensor, source: Tensor, offset: Tensor
    ) -> Tensor:
        """Embed last words, plain or copied, of any one shape."""
        naming, plain = (source - 1).clamp_min(0), source == WORD
        row = (tables.topics.naming_fact[naming] + 1).masked_fill(plain, 0)
        offset = offset.clamp_max(self.config.num_positions - 1)
        row, plain, offset = (
            sent(x, words.device) for x in (row, plain[..., None], offset)
        )
        fact = tables.fact[row]
        return torch.cat(
            [
                fact,
                self.words.embed(words).masked_fill(~plain, 0.0),
                self.position(offset).masked_fill(plain, 0.0),
            ],
            -1,
        )

    def tables(self) -> Tables:
        topics = self.knowledge
        every = torch.arange(len(topics.fact_relation))
        facts = self.facts.vectors(topics, every)
        rows = torch.cat([self.no_fact[None], facts])
        aliases = torch.arange(len(topics.alias_words))
        knowledge = None
        if self.config.knowledge_vector:
            total = facts.new_zeros(topics.num_topics + 1, facts.shape[1])
            count = topics.fact_topic.bincount(minlength=topics.num_topics + 1)
            owner, count = (sent(x, facts.device) for x in (topics.fact_topic, count))
            total = total.index_add(0, owner, facts) + self.no_fact
            knowledge = total / (count + 2)[:, None]
        return Tables(topics, rows, self.facts.aliases(topics, aliases), knowledge)

    # -- where a word comes from, and which it is --------------------------------------

    def log_step(
        self,
        tables: Tables,
        hidden: Tensor,
        topic: Tensor,
        source: Tensor,
        offset: Tensor,
    ) -> Tensor:
        """Log p of the sources of words; a plain word itself is not scored.

        Args:
            tables: Facts and names.
            hidden: Hidden states, (N, hidden_size).
            topic: Topics, on the host like the following, (N,).
            source: ``WORD`` or 1 + naming, of that topic, (N,).
            offset: Index of each word in its name, (N,).

        Returns:
            Nats, (N,) float64.
        """
        topics, naming = tables.topics, (source - 1).clamp_min(0)
        copied = source != WORD
        row = torch.where(copied, topics.naming_fact[naming] + 1, 0)
        total = self._log_fact(tables, hidden, topic, row)
        value = torch.cat([hidden, tables.fact[sent(row, hidden.device)]], -1)
        if not self.config.only_possible:
            gate = self.copy(value)[:, 0]
            gate = torch.where(sent(copied, hidden.device), gate, -gate)
            total = total + F.logsigmoid(gate).clamp_min(LEAST)
        (index,) = copied.nonzero(as_tuple=True)
        naming, offset, index = naming[index], offset[index], sent(index, hidden.device)
        value = value[index]
        scores = self.to_position(value)
        if self.config.only_possible:
            position = torch.arange(scores.shape[-1])
            beyond = sent(position >= topics.length(naming)[:, None], scores.device)
            scores = scores.masked_fill(beyond, -torch.inf)
        offset = sent(offset[:, None], scores.device)
        inner = scores.log_softmax(-1).gather(-1, offset)[:, 0]
        if not self.config.oracle:
            inner = inner + log_choice(
                self.to_alias(value),
                torch.arange(len(value)),
                topics.naming_fact[naming],
                naming,
                topics.namings_of,
                lambda namings: tables.alias[
                    sent(topics.naming_alias[namings], value.device)
                ],
            )
        return widened(total).index_add(0, index, widened(inner))

    def log_words(
        self, tables: Tables, hidden: Tensor, words: Tensor, cost: Tensor
    ) -> Tensor:
        """Log p of plain words, their spelling included, (N,) float64."""
        value = self._plain(tables, hidden)
        parts = [
            widened(self.words.log_prob(*part))
            for part in in_parts(self.config.vocab_size, value, words)
        ]
        known = self.words.known(words)
        return torch.cat(parts) + cost.masked_fill(known != UNKNOWN, 0.0)

    def _log_fact(
        self, tables: Tables, hidden: Tensor, topic: Tensor, row: Tensor
    ) -> Tensor:
        """Log p(fact | topic); row 0 is no fact, row f + 1 is fact f."""
        informed = hidden
        if tables.knowledge is not None:
            knowledge = tables.knowledge[sent(topic, hidden.device)]
            informed = torch.cat([knowledge, hidden], -1)
        query = self.to_fact(informed)
        start, end = tables.topics.facts_of(topic)
        fact, of = expand_ranges(start, end)
        facts, column = distinct(fact)
        table = tables.fact[sent(facts + 1, hidden.device)]
        every = torch.arange(len(topic))
        scores = products(query, table, of, column) if len(of) else query.new_zeros(0)
        none = query @ self.no_fact
        log_z = segment_logsumexp(
            torch.cat([none, scores]), torch.cat([every, of]), len(topic)
        )
        first = (end - start).cumsum(0) - (end - start)
        index = (first + row - 1 - start).clamp(0, max(len(scores) - 1, 0))
        index, nothing = (sent(x, hidden.device) for x in (index, row == 0))
        return torch.where(nothing, none, scores[index]) - log_z

    def _plain(self, tables: Tables, hidden: Tensor) -> Tensor:
        """Vectors from which plain words are predicted."""
        return torch.cat([hidden, tables.fact[:1].expand(len(hidden), -1)], -1)
