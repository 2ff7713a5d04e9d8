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
    estimators = ("auto", "dpf", "is", "beam", "smc")
    """Supported estimators, the default first."""
    proposal_names = ("adapted", "peeking")
    """Names of proposals, the default first."""

    def __init__(self, config: NKLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config, topics)
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def normalization(self) -> Normalization:
        if self.config.only_possible or self.config.oracle:
            return super().normalization
        return Normalization.BELOW_ONE

    # -- p(x, z) --------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> NKLMState:
        """State of texts whose topics are given, to ``encode`` after."""
        topics = [self.knowledge.number(name) for name in names]
        return self.begin(torch.tensor(topics))

    def begin(self, topic: Tensor) -> NKLMState:
        """State of texts before their first word, whose topics are on the host."""
        return NKLMState(self.started(len(topic)), topic[:, None], self.tables())

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        nothing = torch.zeros(len(batch.length), dtype=torch.long)
        state = after or self.begin(nothing)
        return Encoded(batch, state, state.tables)

    def log_joint(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64; ``-inf`` if z contradicts the text."""
        batch, topics = encoded.batch, encoded.tables.topics
        copies = Copies(*fetched(*copies))
        words, _ = batch.on_host
        state = encoded.state.expanded(copies.topic.shape[1])
        hidden = self.predicted_from(encoded, state, copies)
        inside = batch.inside_on_host[:, None].expand_as(copies.source)
        naming = (copies.source - 1).clamp_min(0)
        last = topics.alias_words.shape[1] - 1
        copied_word = topics.word(naming, copies.offset.clamp_max(last))
        wrong = copied_word != words[:, None].expand_as(copied_word)
        wrong |= topics.naming_topic[naming] != copies.topic[..., None]
        wrong |= copies.offset >= self.config.num_positions
        wrong &= (copies.source != WORD) & inside
        topic = copies.topic[..., None].expand_as(copies.source)
        targets = batch.targets[:, None].expand_as(copies.source)
        cost = batch.unknown_log_prob[:, None].expand(copies.source.shape)
        fits = inside & ~wrong
        plain = fits & (copies.source == WORD)
        flat, device = hidden.flatten(0, 2), hidden.device
        fit_index, plain_index = (
            sent(x.flatten().nonzero()[:, 0], device) for x in (fits, plain)
        )
        log_p = self.log_step(
            encoded.tables,
            flat[fit_index],
            topic[fits],
            copies.source[fits],
            copies.offset[fits],
        )
        uttered = self.log_words(
            encoded.tables,
            flat[plain_index],
            targets.flatten()[plain_index],
            cost.flatten()[plain_index],
        )
        total = wide_zeros((inside.numel(),), device)
        total = total.index_add(0, fit_index, log_p).index_add(0, plain_index, uttered)
        total = total.view(inside.shape).sum(-1)
        has_topic, prior = state.topic != 0, topics.log_prior[copies.topic - 1]
        prior = prior.masked_fill(has_topic, 0.0)
        prior = prior.masked_fill(has_topic & (state.topic != copies.topic), -torch.inf)
        total = total + sent(prior, device)
        return total.masked_fill(sent(wrong.any(-1), device), -torch.inf)

    def predicted_from(
        self, encoded: Encoded, state: NKLMState, copies: Copies
    ) -> Tensor:
        """Hidden states that predict each word, (B, K, T, size)."""
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
                latent = sent(
                    torch.arange(len(topic)).repeat_interleave(len(every)), device
                )
                topic = every.repeat(len(topic))
                prior = sent(topics.log_prior[topic - 1], device)
                hidden, weight = hidden[latent], weight[latent] + prior
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
        for part, mass in in_parts(self.config.vocab_size, value, log_plain.exp()):
            uttered = uttered + mass @ widened(self.words.log_probs(part)).exp()
        fact, row = expand_ranges(*topics.facts_of(topic))
        naming, of_fact = expand_ranges(*topics.namings_of(fact))
        row = row[of_fact]
        length = topics.length(naming).clamp_max(self.config.num_positions)
        offset, of_naming = expand_ranges(torch.zeros_like(length), length)
        naming, row = naming[of_naming], row[of_naming]
        word, latent = (
            sent(x, hidden.device) for x in (topics.word(naming, offset), row)
        )
        log_p = self.log_step(tables, hidden[latent], topic[row], naming + 1, offset)
        mixed = uttered.new_zeros(self.config.num_words)
        mixed[: len(uttered)] = uttered
        return mixed.index_add(0, word, (log_p + weight[latent]).exp()).log()

    # -- q(z | x) -------------------------------------------------------------------

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> NKLMProposal:
        """Build a proposal.

        Args:
            name: ``adapted`` (default) draws the topic by the piece's words that its
                names contain, ``peeking`` from p's prior. Both then draw the source of
                each word from p given that word.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        return NKLMProposal(self, chosen(name, self.proposal_names), temperature)


# -- proposals ----------------------------------------------------------------------

TOPIC_LANE = 1
"""Index of the random number that draws the topic, among the first word's."""


@dataclass(frozen=True)
class Reading:
    """State of latents whose last word has a source but is not read yet."""

    joint: NKLM
    encoded: Encoded
    before: NKLMState
    """State before that word."""
    last: tuple[int, Tensor, Tensor] | None = None
    """Index of that word, its source and its offset, (B, K) each; None before the
    first."""

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
    """Steps of a piece: the topic, if it is not known yet, and then each word.

    Choices are listed on the host.
    """

    proposal: NKLMProposal
    encoded: Encoded
    num_columns: ClassVar[int] = 2
    """Columns: source and offset of a word; the topic and 0 in the first step."""

    @property
    def topics(self) -> int:
        """Number of steps that decide on a topic: one, or none."""
        return int(bool((self.encoded.state.topic == 0).any()))

    @cached_property
    def length(self) -> Tensor:
        return self.encoded.batch.on_host[1] + self.topics

    @property
    def num_steps(self) -> int:
        return self.encoded.batch.targets.shape[1] + self.topics

    def begin(self, num_histories: int | None) -> Reading:
        """Latents before the piece: K, or those of the state."""
        state = self.encoded.state
        if num_histories is not None:
            state = state.expanded(num_histories)
        return Reading(self.proposal.model, self.encoded, state)

    def num_histories(self, state: Reading) -> int:
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
        """List the topics of latents (B, K): all, or the known one."""
        topics, ahead = self.encoded.tables.topics, self._ahead[0]
        given = topic.flatten()
        choice, history = expand_ranges(
            torch.where(given > 0, given, 1),
            torch.where(given > 0, given + 1, topics.num_topics + 1),
        )
        evidence = ahead[history // topic.shape[1], choice - 1]
        log_p = topics.log_prior[choice - 1].double()
        log_p = log_p.masked_fill(given[history] > 0, 0.0)
        score = (log_p + evidence) / self.proposal.temperature
        columns = choice, torch.zeros_like(choice)
        shape = topic.shape[0], topic.shape[1]
        return Ragged(shape, history, columns, log_p, score, evidence)

    def take(
        self,
        state: Reading,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
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
        word = t - self.topics
        u = uniforms(0)[..., TOPIC_LANE] if word < 0 else uniforms(word)[..., 0]
        return draw_listed(self, state, t, u, origin, 1.0)


@dataclass(frozen=True)
class NKLMProposal(StepProposal):
    r"""q(z | x): a topic, then the source of each word.

    .. math:: q(z_t \mid z_{<t}, x_{\le t}) = p(z_t \mid z_{<t}, x_{\le t})

    which is exact, because few names contain a given word. ``peeking`` draws the topic
    from p's prior. ``adapted`` reads the piece for it,

    .. math::
        q(k) \propto p(k) \prod_{t:\, x_t \text{ in a name of } k} \frac{N}{n(x_t)}

    where n(x) of the N topics have the word x in a name: "of" is weak evidence of the
    topic, a surname strong. A search ranks by p so far, and by the evidence of the next
    words for the topic.

    Source: Pitt and Shephard (1999), the fully adapted auxiliary particle filter.
    """

    model: NKLM
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        return self.model.encode(batch, after)

    def drawn_steps(self, encoded: Encoded) -> CopySteps:
        return CopySteps(self, encoded)

    searched_steps = drawn_steps

    def histories(self, encoded: Encoded) -> int:
        return encoded.state.topic.shape[1]

    def latents(self, encoded: Encoded, found: Sampled | Found) -> Copies:
        source, offset = found.columns
        if CopySteps(self, encoded).topics:
            return Copies(source[..., 0], source[..., 1:], offset[..., 1:])
        return Copies(encoded.state.topic.gather(1, found.origin), source, offset)

    def log_prob(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
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
            choice, listed_mask = listed.find(decided)
            log_q = listed.at(listed.log_q(self.temperature), choice)
            log_q = log_q.masked_fill(~sent(listed_mask, log_q.device), -torch.inf)
            total = total + log_q.masked_fill(~inside[:, None], 0.0)
        return total

    def advance(self, encoded: Encoded, copies: Copies) -> NKLMState:
        return self.model.advance(encoded, copies)

    # -- topics -----------------------------------------------------------------------

    def evidence(self, encoded: Encoded, first: int, last: int) -> Tensor:
        """Evidence of given words for each topic, on the host, (B, N) nats."""
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
        pair, row = expand_ranges(start, end)
        gain = math.log(many - 1) - widened(end - start).log()
        index = (text[row], tables.pairs[pair] % many)
        return spoken.index_put(index, gain[row], accumulate=True)[:, 1:]

    # -- words ------------------------------------------------------------------------

    def options(
        self, encoded: Encoded, hidden: Tensor, topic: Tensor, t: int
    ) -> Ragged:
        """List the sources of word t of latents (B, K), with log p of source and word.

        A plain word is the first choice of each.
        """
        batch, tables, hidden = encoded.batch, encoded.tables, hidden.flatten(0, 1)
        many, flat = tables.topics.num_topics + 1, topic.flatten()
        words = batch.targets[:, t, None].expand(topic.shape).flatten()
        cost = batch.unknown_log_prob[:, t, None].expand(topic.shape).flatten()
        key, naming, offset = tables.cells
        word = batch.on_host[0][:, t, None].expand_as(topic).flatten()
        wanted = word * many + flat
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
        latent, plain = (
            sent(x, hidden.device) for x in (rows, (source == WORD).nonzero()[:, 0])
        )
        log_p = self.model.log_step(tables, hidden[latent], flat[rows], source, offsets)
        uttered = self.model.log_words(tables, hidden, words, cost)
        log_p = log_p.index_add(0, plain, uttered)
        return Ragged((topic.shape[0], topic.shape[1]), rows, (source, offsets), log_p)
