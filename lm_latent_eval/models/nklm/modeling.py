"""NKLM: words, some copied from the facts of a topic, p(x, z) and q(z | x).

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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.ragged import expand_ranges, in_parts
from lm_latent_eval.inference.step_choices import Choices, Ragged
from lm_latent_eval.inference.steps import Drawn, Found, Sampled, Taken, draw_listed
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Normalization, Uniforms
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Copies, Encoded, NKLMState, Tables
from lm_latent_eval.models.nklm.network import NKLMLayers
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.text.batch import TokenBatch


class NKLM(NKLMLayers):
    """A neural knowledge language model with its proposals and its topics."""

    config_class = NKLMConfig
    base_model_prefix = "nklm"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "dpf", "is", "beam", "smc")
    """Names of its estimators, the default first."""
    proposal_names = ("adapted", "peeking")
    """Names of its proposals, the default first."""

    def __init__(self, config: NKLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config, topics)
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def normalization(self) -> Normalization:
        """Total of its probabilities over all texts."""
        if self.config.only_possible or self.config.oracle:
            return super().normalization
        return Normalization.BELOW_ONE

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
        words, _ = batch.on_host
        state = encoded.state.expanded(copies.topic.shape[1])
        hidden = self.predicted_from(encoded, state, copies)
        inside = batch.inside_on_host[:, None].expand_as(copies.source)
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
        known, prior = state.topic != 0, topics.log_prior[copies.topic - 1]
        prior = prior.masked_fill(known, 0.0)
        prior = prior.masked_fill(known & (state.topic != copies.topic), -torch.inf)
        total = total + sent(prior, device)
        return total.masked_fill(sent(wrong.any(-1), device), -torch.inf)

    def predicted_from(
        self, encoded: Encoded, state: NKLMState, copies: Copies
    ) -> Tensor:
        """Return the hidden states that predict each word.

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
        uttered = log_plain.new_zeros(self.config.vocab_size)
        for some, mass in in_parts(self.config.vocab_size, value, log_plain.exp()):
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


# -- proposals ----------------------------------------------------------------------

TOPIC_LANE = 1
"""Which of the first random numbers draws the topic."""


@dataclass(frozen=True)
class Reading:
    """State of latents whose last word has a source and is not read yet."""

    joint: NKLM
    encoded: Encoded
    before: NKLMState
    """State before that word."""
    last: tuple[int, Tensor, Tensor] | None = None
    """Which word it is, its source and its offset, (B, K) each; None: there is none."""

    @cached_property
    def state(self) -> NKLMState:
        """State after that word."""
        if self.last is None:
            return self.before
        t, source, offset = self.last
        words = self.encoded.batch.targets[:, t : t + 1]
        _, carry = self.joint.read(
            self.encoded.tables,
            self.before.carry,
            words,
            torch.ones_like(words[:, 0]),
            source[..., None],
            offset[..., None],
        )
        return replace(self.before, carry=carry)


@dataclass(frozen=True)
class CopySteps:
    """The steps of a piece: the topic, if it is not known yet, and then each word.

    What can be chosen is decided on the host; ``score`` divides by the temperature.
    """

    proposal: NKLMProposal
    encoded: Encoded
    num_columns: ClassVar[int] = 2
    """Source and offset of a word; the topic and 0 before the first one."""

    @property
    def topics(self) -> int:
        """How many steps decide on a topic: one, or none."""
        return int(bool((self.encoded.state.topic == 0).any()))

    @cached_property
    def length(self) -> Tensor:
        """Steps of each text, on the host, (B,)."""
        return self.encoded.batch.on_host[1] + self.topics

    @property
    def num_steps(self) -> int:
        """T, and the topic's."""
        return self.encoded.batch.targets.shape[1] + self.topics

    def begin(self, num_histories: int | None) -> Reading:
        """Return the latents before the piece: K, or those there are."""
        state = self.encoded.state
        if num_histories is not None:
            state = state.expanded(num_histories)
        return Reading(self.proposal.model, self.encoded, state)

    def num_histories(self, state: Reading) -> int:
        """Return K."""
        return state.before.topic.shape[1]

    @cached_property
    def _ahead(self) -> list[Tensor]:
        """Evidence of the words after each step for each topic, (B, N) nats each."""
        words = self.encoded.batch.targets.shape[1]
        spoken = [
            self.proposal.evidence(self.encoded, t, t + 1)
            for t in reversed(range(words))
        ]
        nothing = self.proposal.evidence(self.encoded, 0, 0)
        sums = [nothing]
        for more in spoken:
            sums.append(sums[-1] + more)
        return sums[::-1]

    def choices(self, state: Reading, t: int, score: Tensor, cut: Cut | None) -> Ragged:
        """List the topics, or the sources of a word."""
        word = t - self.topics
        if word < 0:
            return self._topic_choices(state.before.topic)
        hidden, topic = state.state.hidden, state.state.topic
        listed = self.proposal.options(self.encoded, hidden, topic, word)
        log_p = listed.log_p
        if cut is None:
            return replace(listed, score=log_p / self.proposal.temperature)
        (log_p,) = fetched(log_p)
        ahead = self._ahead[word + 1].gather(1, topic - 1).flatten()[listed.history]
        return replace(listed, log_p=log_p, ahead=ahead)

    def _topic_choices(self, topic: Tensor) -> Ragged:
        """List the topics of latents (B, K): all, or the one that is known."""
        topics, ahead = self.encoded.tables.topics, self._ahead[0]
        known = topic.flatten()
        number, history = expand_ranges(
            torch.where(known > 0, known, 1),
            torch.where(known > 0, known + 1, topics.num_topics + 1),
        )
        unknown = known[history] == 0
        hope = ahead[history // topic.shape[1], number - 1]
        log_p = topics.log_prior[number - 1].double().masked_fill(~unknown, 0.0)
        score = (log_p + hope) / self.proposal.temperature
        nothing = torch.zeros_like(number)
        shape = topic.shape[0], topic.shape[1]
        return Ragged(shape, history, (number, nothing), log_p, score, hope)

    def take(
        self,
        state: Reading,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        """Extend latents by chosen topics or sources."""
        assert isinstance(choices, Ragged)
        first, second = choices.decided(choice)
        before, word = state.state.resample(origin), t - self.topics
        if word < 0:
            return Taken(
                replace(state, before=replace(before, topic=first)), (first, second)
            )
        last = word, first, second
        return Taken(replace(state, before=before, last=last), (first, second))

    def draw(
        self, state: Reading, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw the topic, or the source of a word."""
        word = t - self.topics
        u = uniforms(0)[..., TOPIC_LANE] if word < 0 else uniforms(word)[..., 0]
        return draw_listed(self, state, t, u, origin, 1.0)


@dataclass(frozen=True)
class NKLMProposal(StepProposal):
    r"""q(z | x): a topic, then the source of each word.

    .. math:: q(z_t \mid z_{<t}, x_{\le t}) = p(z_t \mid z_{<t}, x_{\le t})

    which is known exactly, since few names have any one word. ``peeking`` draws the
    topic from p's prior. ``adapted`` reads the piece at hand for it,

    .. math::
        q(k) \propto p(k) \prod_{t:\, x_t \text{ in a name of } k} \frac{N}{n(x_t)}

    where n(x) of the N topics have the word x in a name: so "of" says next to nothing
    of what a text is about, and a surname much. A search ranks by p so far, and by what
    the words to come say of the topic.

    Source: Pitt and Shephard (1999), the fully adapted auxiliary particle filter.
    """

    model: NKLM
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        """Take up a piece of text."""
        return self.model.encode(batch, after)

    def drawn_steps(self, encoded: Encoded) -> CopySteps:
        """Return the steps, which are drawn and searched alike."""
        return CopySteps(self, encoded)

    searched_steps = drawn_steps

    def histories(self, encoded: Encoded) -> int:
        """Return how many latents of a text a piece follows."""
        return encoded.state.topic.shape[1]

    def latents(self, encoded: Encoded, found: Sampled | Found) -> Copies:
        source, offset = found.columns
        if CopySteps(self, encoded).topics:
            return Copies(source[..., 0], source[..., 1:], offset[..., 1:])
        return Copies(encoded.state.topic.gather(1, found.origin), source, offset)

    def log_prob(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        batch, copies = encoded.batch, Copies(*fetched(*copies))
        state = encoded.state.expanded(copies.topic.shape[1])
        spoken = self.evidence(encoded, 0, batch.targets.shape[1])
        fitting = (encoded.tables.topics.log_prior + spoken) / self.temperature
        log_topic = fitting.log_softmax(-1).gather(1, copies.topic - 1)
        log_topic = log_topic.masked_fill(state.topic != 0, 0.0)
        total = sent(log_topic, batch.targets.device)
        hidden = self.model.predicted_from(encoded, state, copies)
        for t in range(batch.targets.shape[1]):
            inside = batch.length > t
            listed = self.options(encoded, hidden[:, :, t], copies.topic, t)
            decided = copies.source[..., t], copies.offset[..., t]
            choice, there = listed.find(decided)
            log_q = listed.at(listed.log_q(self.temperature), choice)
            log_q = log_q.masked_fill(~sent(there, log_q.device), -torch.inf)
            total = total + log_q.masked_fill(~inside[:, None], 0.0)
        return total

    def advance(self, encoded: Encoded, copies: Copies) -> NKLMState:
        """Return the state after the encoded piece."""
        return self.model.advance(encoded, copies)

    # -- topics -----------------------------------------------------------------------

    def evidence(self, encoded: Encoded, first: int, last: int) -> Tensor:
        """Return the evidence of some words of B texts for each topic, (B, N) nats.

        On the host.
        """
        tables, (targets, _) = encoded.tables, encoded.batch.on_host
        many = tables.topics.num_topics + 1
        spoken = torch.zeros(len(targets), many, dtype=torch.float64)
        if self.name != "adapted":
            return spoken[:, 1:]
        inside = encoded.batch.inside_on_host[:, first:last]
        text = inside.nonzero()[:, 0]
        word = targets[:, first:last][inside] * many
        start = torch.searchsorted(tables.pairs, word)
        end = torch.searchsorted(tables.pairs, word + many)
        found, row = expand_ranges(start, end)
        gain = math.log(many - 1) - widened(end - start).log()
        place = (text[row], tables.pairs[found] % many)
        return spoken.index_put(place, gain[row], accumulate=True)[:, 1:]

    # -- words ------------------------------------------------------------------------

    def options(
        self, encoded: Encoded, hidden: Tensor, topic: Tensor, t: int
    ) -> Ragged:
        """List the sources of word t of latents (B, K), with log p of source and word.

        That it is a plain word is the first choice of each.
        """
        batch, tables, hidden = encoded.batch, encoded.tables, hidden.flatten(0, 1)
        many, flat = tables.topics.num_topics + 1, topic.flatten()
        words = batch.targets[:, t, None].expand(topic.shape).flatten()
        cost = batch.unknown_log_prob[:, t, None].expand(topic.shape).flatten()
        key, naming, offset = tables.cells
        known = batch.on_host[0][:, t, None].expand_as(topic).flatten()
        wanted = known * many + flat
        cell, row = expand_ranges(
            torch.searchsorted(key, wanted),
            torch.searchsorted(key, wanted, right=True),
        )
        fits = offset[cell] < self.model.config.num_positions
        cell, row = cell[fits], row[fits]
        every = torch.arange(len(flat))
        nothing = torch.zeros_like(every)
        rows = torch.cat([every, row])
        order = rows.argsort(stable=True)
        source = torch.cat([nothing + WORD, naming[cell] + 1])[order]
        offsets = torch.cat([nothing, offset[cell]])[order]
        rows = rows[order]
        there, plain = (
            sent(x, hidden.device) for x in (rows, (source == WORD).nonzero()[:, 0])
        )
        log_p = self.model.log_step(tables, hidden[there], flat[rows], source, offsets)
        uttered = self.model.log_words(tables, hidden, words, cost)
        log_p = log_p.index_add(0, plain, uttered)
        return Ragged((topic.shape[0], topic.shape[1]), rows, (source, offsets), log_p)
