"""NKLM's joint distribution p(x, z): words, some copied from the facts of a topic.

    p(x, z) = p(topic) prod_t p(no fact) p(not copied) p(x_t)
                         or   p(fact) p(copied) p(alias) p(position)

The network reads z: a word that was copied is seen as its fact and its position, not
as a word. So there is no exact sum; short texts have few enough z to list. A state has
read its last word, so no word is read again to predict the next one.
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
from dataclasses import replace

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.latent import Normalization, Uniforms
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Copies, Encoded, NKLMState, Tables
from lm_latent_eval.models.nklm.network import TABLE, NKLMLayers
from lm_latent_eval.models.nklm.proposals import NKLMProposal
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START


class NKLM(NKLMLayers):
    """A neural knowledge language model with its proposals and its topics.

    Implements ``LatentLM``, ``LeftToRight`` and ``NextToken`` for p; ``proposal`` gives
    a matching q.
    """

    config_class = NKLMConfig
    base_model_prefix = "nklm"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "dpf", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("adapted", "peeking")
    """What ``proposal`` can return, the default first."""

    def __init__(self, config: NKLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config, topics)
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def normalization(self) -> Normalization:
        """What its probabilities of all texts total."""
        if self.config.oracle:
            return Normalization.UNNORMALISED
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return (
            Normalization.ONE
            if excluded and self.config.only_possible
            else Normalization.BELOW_ONE
        )

    # -- p(x, z) --------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> NKLMState:
        """Return the state of texts whose topics are given, to ``encode`` after."""
        numbers = [self.knowledge.number(name) for name in names]
        return self.begin(torch.tensor(numbers))

    def begin(self, topic: Tensor) -> NKLMState:
        """Return the state of texts that have begun, whose topics are on the host."""
        return NKLMState(self.started(len(topic)), topic[:, None], self.tables())

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        """Take up a piece of text."""
        nothing = torch.zeros(len(batch.length), dtype=torch.long)
        state = after or self.begin(nothing)
        return Encoded(batch, state, state.tables)

    def log_joint(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64; ``-inf`` if z is amiss."""
        batch, topics = encoded.batch, encoded.tables.topics
        copies = Copies(*fetched(*copies))
        words, length = batch.on_host
        state = encoded.state.expanded(copies.topic.shape[1])
        hidden = self.predicted_from(encoded, state, copies)
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

    def predicted_from(
        self, encoded: Encoded, state: NKLMState, copies: Copies
    ) -> Tensor:
        """Return what each word is predicted from: all but the last are read.

        Shape (B, K, T, size).
        """
        before = copies.source.shape[-1] - 1
        read, columns = encoded.batch.piece(0, before), copies[1:]
        hidden, _ = self.read(
            encoded.tables,
            state.carry,
            read.targets,
            read.length,
            *(column[..., :before] for column in columns),
        )
        first = self.trunk.dropout(state.hidden)
        return torch.cat([first[:, :, None], hidden], 2)

    def advance(self, encoded: Encoded, copies: Copies) -> NKLMState:
        """Return the state after the encoded piece."""
        batch, (topic, *columns) = encoded.batch, fetched(*copies)
        state = encoded.state.expanded(topic.shape[1])
        _, carry = self.read(
            encoded.tables, state.carry, batch.targets, batch.length, *columns
        )
        return replace(state, carry=carry, topic=topic)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        state, log_w = encoded.state, log_w.log_softmax(-1)
        topics, tables = encoded.tables.topics, encoded.tables
        every, device = torch.arange(1, topics.num_topics + 1), log_w.device
        rows = []
        for hidden, topic, weight in zip(state.hidden, state.topic, log_w, strict=True):
            if bool((topic == 0).any()):
                one = sent(
                    torch.arange(len(topic)).repeat_interleave(len(every)), device
                )
                topic = every.repeat(len(topic))
                prior = sent(topics.log_prior[topic - 1], device)
                hidden, weight = hidden[one], weight[one] + prior
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

    def _log_topic(self, before: Tensor, topic: Tensor) -> Tensor:
        """Return log p of topics that were not known before, (B, K) float64.

        On the host.
        """
        prior = self.knowledge.log_prior[topic - 1]
        prior = prior.masked_fill(before != 0, 0.0)
        return prior.masked_fill((before != 0) & (before != topic), -torch.inf)

    # -- q(z | x) -------------------------------------------------------------------

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> NKLMProposal:
        """Return a proposal.

        Args:
            name: ``adapted`` (default) draws the topic by which of the piece's words
                its names have, ``peeking`` from p's prior. Then both ask p where each
                word comes from, given that word.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        return NKLMProposal(self, chosen(name, self.proposal_names), temperature)
