r"""NKLM: a language model that copies words out of the facts of a topic.

    p(x, z) = p(topic) prod_t p(no fact) p(not copied) p(x_t)
                         or   p(fact) p(copied) p(alias) p(position)

The network reads z: a word that was copied is seen as its fact and its position, not
as a word. So there is no exact sum; short texts have few enough z to list.
Symbols: h -> ``hidden``; the original's (fact, position, alias) of a word are a naming
of ``topics.py`` and an offset into it; NaF -> ``no_fact``.
Departures: the topic is latent, drawn from a prior before the first word (``about``
conditions on it, and then p is the original's); a copied word must be the word that
stands there; new models exclude what no word can follow (``only_possible``): copying
without a fact, a fact without copying, and positions beyond an alias. Originals leave
mass on them and are sub-normalised.
Source: Ahn et al. (2016); the code of Hayashi et al. (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.latent import Mass
from lm_latent_eval.models.kglm.ragged import expand_ranges, segment_logsumexp
from lm_latent_eval.models.lrlm.base import RelationModel, to_facts
from lm_latent_eval.models.lrlm.choices import log_choice
from lm_latent_eval.models.lrlm.facts import Facts
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.models.lrlm.words import Words
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.state import WORD, Copies, NKLMState, flat, folded
from lm_latent_eval.models.recurrent import Carry, RecurrentStack
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START, UNKNOWN

TABLE = 1 << 24
"""Scores (tokens x words) held at a time."""
LEAST = -100.0
"""What the original's logarithm of a probability is at least."""


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces; whatever is computed from them depends on z."""

    batch: TokenBatch
    state: NKLMState
    """Where the latents before the pieces stand, on the host."""
    tables: Tables


@dataclass(frozen=True)
class Tables:
    """What facts and names look like to the model; their numbers are on the host."""

    topics: Topics
    fact: Tensor
    """No fact, and every fact, (F + 1, 2 * fact_dim)."""
    alias: Tensor
    """(A, alias_dim)."""
    knowledge: Tensor | None
    """What predictions are informed by, of no topic and of each, (N + 1, ...)."""

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every word of every naming: word and topic as one key, naming, offset.

        Sorted by the key, which is word * (num_topics + 1) + topic.
        """
        topics = self.topics
        words = topics.alias_words[topics.naming_alias]
        naming, offset = (words != PAD).nonzero(as_tuple=True)
        key = words[naming, offset] * (topics.num_topics + 1)
        key = key + topics.naming_topic[naming]
        order = key.argsort(stable=True)
        return key[order], naming[order], offset[order]

    @cached_property
    def pairs(self) -> Tensor:
        """Every word with every topic that has it in a name, keyed and sorted alike."""
        key, _, _ = self.cells
        pairs: Tensor = key.unique_consecutive()
        return pairs


class NKLMJoint(RelationModel):
    """p(x, z) of an NKLM, and its topics."""

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

    @property
    def mass(self) -> Mass:
        """What its probabilities of all texts total."""
        if self.config.oracle:
            return Mass.UNNORMALISED
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return Mass.ONE if excluded and self.config.only_possible else Mass.LESS

    # -- p(x, z) --------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> NKLMState:
        """Return the state of texts whose topics are given, to ``encode`` after."""
        numbers = [self.knowledge.number(name) for name in names]
        return self.begin(torch.tensor(numbers, device=self.device))

    def begin(self, topic: Tensor) -> NKLMState:
        """Return the state of texts of which nothing has been read, (B,)."""
        like = self.no_fact
        layers = tuple(
            (like.new_zeros(len(topic), 1, size),) * 2 for size in self.trunk.sizes
        )
        nothing = torch.zeros_like(topic)[:, None]
        return NKLMState(Carry(layers), topic[:, None], nothing, nothing)

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        """Take up a piece of text."""
        nothing = torch.zeros(len(batch.length), dtype=torch.long)
        state = after.on_host() if after else self.begin(nothing)
        return Encoded(batch, state, self._tables())

    def log_joint(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64; ``-inf`` if z is amiss."""
        batch, topics = encoded.batch, encoded.tables.topics
        copies = Copies(*fetched(*copies))
        words, length = batch.on_host
        state = encoded.state.expanded(copies.topic.shape[1])
        hidden, _ = self._read(encoded, state, copies)
        inside = torch.arange(words.shape[1]) < length[:, None, None]
        inside = inside.expand_as(copies.source)
        naming = (copies.source - 1).clamp_min(0)
        last = topics.alias_words.shape[1] - 1
        said = topics.word(naming, copies.offset.clamp_max(last))
        wrong = said != words[:, None].expand_as(said)
        wrong |= topics.naming_topic[naming] != copies.topic[..., None]
        wrong |= copies.offset >= self.config.num_positions
        wrong &= (copies.source != WORD) & inside
        topic = copies.topic[..., None].expand_as(copies.source)
        targets = batch.targets[:, None].expand_as(copies.source)
        cost = batch.unknown_log_prob[:, None].expand(copies.source.shape)
        fits = inside & ~wrong
        plain = fits & (copies.source == WORD)
        flat, device = hidden.flatten(0, 2), hidden.device
        some, few = (sent(x.flatten().nonzero()[:, 0], device) for x in (fits, plain))
        log_p = self.log_step(
            encoded.tables,
            flat[some],
            topic[fits],
            copies.source[fits],
            copies.offset[fits],
        )
        uttered = self.log_words(
            encoded.tables, flat[few], targets.flatten()[few], cost.flatten()[few]
        )
        total = wide_zeros((inside.numel(),), device)
        total = total.index_add(0, some, log_p).index_add(0, few, uttered)
        total = total.view(inside.shape).sum(-1)
        total = total + sent(self._log_topic(state.topic, copies.topic), device)
        return total.masked_fill(sent(wrong.any(-1), device), -torch.inf)

    def advance(self, encoded: Encoded, copies: Copies) -> NKLMState:
        """Return the state after the encoded piece."""
        copies = Copies(*fetched(*copies))
        state = encoded.state.expanded(copies.topic.shape[1])
        _, carry = self._read(encoded, state, copies)
        _, length = encoded.batch.on_host
        end = length[:, None, None].expand(*state.topic.shape, 1)
        source, offset = (
            torch.cat([before[..., None], column], -1).gather(-1, end)[..., 0]
            for before, column in (
                (state.source, copies.source),
                (state.offset, copies.offset),
            )
        )
        after = NKLMState(carry, copies.topic, source, offset)
        return after.sent(encoded.batch.targets.device)

    def next_token(self, encoded: Encoded, log_w: Tensor) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        state, log_w = encoded.state, log_w.log_softmax(-1)
        topics, tables = encoded.tables.topics, encoded.tables
        every, device = torch.arange(1, topics.num_topics + 1), log_w.device
        rows = []
        for b in range(len(log_w)):
            here = state.select(torch.tensor([b]))
            topic, weight = here.topic[0], log_w[b]
            one = torch.arange(len(topic))
            if bool((topic == 0).any()):
                one = one.repeat_interleave(len(every))
                topic = every.repeat(len(topic))
                prior = sent(topics.log_prior[topic - 1], device)
                weight = weight[sent(one, device)] + prior
            here = here.resample(one[None])
            hidden, _ = self.step(tables, here, encoded.batch.inputs[b : b + 1, :1])
            rows.append(self._mixed(tables, hidden, topic, weight))
        return torch.stack(rows)

    def _mixed(
        self, tables: Tables, hidden: Tensor, topic: Tensor, weight: Tensor
    ) -> Tensor:
        """Mix the next word's distributions of N latents, (num_words,) nats."""
        topics = tables.topics
        nothing = torch.zeros_like(topic)
        log_plain = self.log_step(tables, hidden, topic, nothing, nothing) + weight
        value = self._plain(tables, hidden)
        at_once = max(1, TABLE // self.config.vocab_size)
        uttered = log_plain.new_zeros(self.config.vocab_size)
        for some, mass in zip(
            value.split(at_once), log_plain.exp().split(at_once), strict=True
        ):
            uttered = uttered + mass @ widened(self.words.log_probs(some)).exp()
        fact, row = expand_ranges(*topics.facts_of(topic))
        naming, of_fact = expand_ranges(*topics.namings_of(fact))
        row = row[of_fact]
        length = topics.length(naming).clamp_max(self.config.num_positions)
        offset, of_naming = expand_ranges(torch.zeros_like(length), length)
        naming, row = naming[of_naming], row[of_naming]
        word, there = (
            sent(x, hidden.device) for x in (topics.word(naming, offset), row)
        )
        log_p = self.log_step(tables, hidden[there], topic[row], naming + 1, offset)
        mixed = uttered.new_zeros(self.config.num_words)
        mixed[: len(uttered)] = uttered
        return mixed.index_add(0, word, (log_p + weight[there]).exp()).log()

    # -- one word after another -------------------------------------------------------

    def step(
        self, tables: Tables, state: NKLMState, inputs: Tensor
    ) -> tuple[Tensor, Carry]:
        """Read the last word of every latent.

        Args:
            tables: Facts and names.
            state: B texts with K latents.
            inputs: That word, (B, 1), where the model is.

        Returns:
            What the next is predicted from, (B * K, size), and the recurrent state.
        """
        read = self._inputs(
            tables,
            inputs.expand_as(state.source).flatten(),
            state.source.flatten(),
            state.offset.flatten(),
        )
        length = torch.ones(len(read), dtype=torch.long, device=read.device)
        hidden, carry = self.trunk(read[:, None], length, flat(state.carry))
        return hidden[:, 0], folded(carry, len(inputs))

    def log_step(
        self,
        tables: Tables,
        hidden: Tensor,
        topic: Tensor,
        source: Tensor,
        offset: Tensor,
    ) -> Tensor:
        """Return log p of where words come from, but for what plain ones are.

        Args:
            tables: Facts and names.
            hidden: (N, hidden_size).
            topic: On the host, as what follows, (N,).
            source: ``WORD`` or 1 + naming, of that topic, (N,).
            offset: (N,).

        Returns:
            Nats, (N,) float64.
        """
        topics, naming = tables.topics, (source - 1).clamp_min(0)
        copied = source != WORD
        row = torch.where(copied, topics.naming_fact[naming] + 1, 0)
        total = self._log_fact(tables, hidden, topic, row)
        value = self._informed(hidden, tables.fact[sent(row, hidden.device)])
        if not self.config.only_possible:
            gate, there = self.copy(value)[:, 0], sent(copied, hidden.device)
            gate = F.logsigmoid(torch.where(there, gate, -gate)).clamp_min(LEAST)
            total = total + gate
        (some,) = copied.nonzero(as_tuple=True)
        naming, offset, some = naming[some], offset[some], sent(some, hidden.device)
        value = value[some]
        scores = self.to_position(value)
        if self.config.only_possible:
            place = torch.arange(scores.shape[-1])
            beyond = sent(place >= topics.length(naming)[:, None], scores.device)
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
                lambda some: tables.alias[
                    sent(topics.naming_alias[some], value.device)
                ],
            )
        return widened(total).index_add(0, some, widened(inner))

    def log_words(
        self, tables: Tables, hidden: Tensor, words: Tensor, cost: Tensor
    ) -> Tensor:
        """Return log p of plain words, their spelling included, (N,) float64."""
        value = self._plain(tables, hidden)
        at_once = max(1, TABLE // self.config.vocab_size)
        parts = [
            widened(self.words.log_prob(some, these))
            for some, these in zip(
                value.split(at_once), words.split(at_once), strict=True
            )
        ]
        known = self.words.known(words)
        return torch.cat(parts) + cost.masked_fill(known != UNKNOWN, 0.0)

    def _log_fact(
        self, tables: Tables, hidden: Tensor, topic: Tensor, row: Tensor
    ) -> Tensor:
        """Return log p(fact | topic); row 0 is no fact, row f + 1 is fact f."""
        informed = hidden
        if tables.knowledge is not None:
            knowledge = tables.knowledge[sent(topic, hidden.device)]
            informed = torch.cat([knowledge, hidden], -1)
        query = self.to_fact(informed)
        start, end = tables.topics.facts_of(topic)
        fact, of = expand_ranges(start, end)
        there, facts = (sent(x, hidden.device) for x in (of, fact + 1))
        scores = (query[there] * tables.fact[facts]).sum(-1)
        none = query @ self.no_fact
        every = torch.arange(len(topic))
        log_z = segment_logsumexp(
            torch.cat([none, scores]), torch.cat([every, of]), len(topic)
        )
        first = (end - start).cumsum(0) - (end - start)
        place = (first + row - 1 - start).clamp(0, max(len(scores) - 1, 0))
        place, nothing = (sent(x, hidden.device) for x in (place, row == 0))
        return torch.where(nothing, none, scores[place]) - log_z

    def _plain(self, tables: Tables, hidden: Tensor) -> Tensor:
        """Return what words that are not copied are predicted from."""
        return self._informed(hidden, tables.fact[:1].expand(len(hidden), -1))

    @staticmethod
    def _informed(hidden: Tensor, fact: Tensor) -> Tensor:
        return torch.cat([hidden, fact], -1)

    def _read(
        self, encoded: Encoded, state: NKLMState, copies: Copies
    ) -> tuple[Tensor, Carry]:
        """Read pieces under given latents: hidden (B, K, T, size), and the state."""
        batch = encoded.batch
        source, offset = (
            torch.cat([before[..., None], column], -1)[..., :-1]
            for before, column in (
                (state.source, copies.source),
                (state.offset, copies.offset),
            )
        )
        words = batch.inputs[:, None].expand_as(source)
        read = self._inputs(encoded.tables, words, source, offset).flatten(0, 1)
        length = batch.length[:, None].expand_as(state.topic).flatten()
        hidden, carry = self.trunk(read, length, flat(state.carry))
        size = len(batch.length)
        return hidden.unflatten(0, (size, -1)), folded(carry, size)

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

    def _tables(self) -> Tables:
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

    def _log_topic(self, before: Tensor, topic: Tensor) -> Tensor:
        """Return log p of topics that were not known before, (B, K) float64.

        On the host.
        """
        prior = self.knowledge.log_prior[topic - 1]
        prior = prior.masked_fill(before != 0, 0.0)
        return prior.masked_fill((before != 0) & (before != topic), -torch.inf)
