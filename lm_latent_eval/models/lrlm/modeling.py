"""LRLM: text and its segmentation into words and names, p(x, z) and q(z | x).

    p(x, z) = prod over segments of  p(word) p(x_t)  or  p(relation) p(r) p(alias of r)

A text is cut into words and names of facts' objects; everything that a segment costs is
paid at its first word. Only the text is read, never z, so that the sum over all z is a
semi-Markov sum (``lattice.py``) and p(x) is exact.

Symbols: h -> ``value``; the source variable -> ``selector``; a segment's relation and
surface form are one *naming* (``topics.py``).
Departures: what a text is about is latent too. The original is given each text's
relations. Here the topic has a prior, is decided with the first name, and is summed out
with the rest, so that p(x) is of the string alone and compares with that of models that
are told nothing; ``about`` conditions on a topic, and then p is the original's. New
models exclude padding and start, and encode names by their letters (``Facts``).
Source: Hayashi et al. (2020), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference import steps
from lm_latent_eval.inference.ragged import expand_ranges, in_parts
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Draws, Uniforms
from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.latents import (
    Encoded,
    Readings,
    RelationState,
    tempered,
)
from lm_latent_eval.models.lrlm.lattice import FLOOR, Arcs, Lattice, find_arcs
from lm_latent_eval.models.lrlm.network import Facts, Words, log_choice
from lm_latent_eval.models.lrlm.steps import (
    ReadingSteps,
    after_readings,
    log_options,
    log_readings,
    reading_steps,
    words_ahead,
)
from lm_latent_eval.models.lrlm.topics import RelationModel, Topics, to_facts
from lm_latent_eval.models.proposals import NoLatents, check_temperature, chosen
from lm_latent_eval.models.recurrent import RecurrentStack
from lm_latent_eval.text.batch import TokenBatch


class LRLM(RelationModel):
    """A latent relation language model with its proposals and its topics."""

    config_class = LRLMConfig
    base_model_prefix = "lrlm"
    main_input_name = "inputs"
    estimators = ("exact", "auto", "dpf", "is", "beam", "smc")
    """Supported estimators, the default first."""
    proposal_names = ("posterior", "adapted")
    """Names of proposals, the default first."""
    config: LRLMConfig

    def __init__(self, config: LRLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config)
        inner = [config.hidden_size] * config.num_layers
        self.trunk = RecurrentStack([config.embedding_dim, *inner], config.dropout)
        size = config.hidden_size
        if config.knowledge_vector:
            size += config.full_fact_dim
        self.words = Words(config, size)
        self.facts = Facts(config)
        self.selector = nn.Linear(size, 2)
        self.to_fact = to_facts(size, config.fact_hidden, config.full_fact_dim)
        if not config.oracle:
            self.to_alias = nn.Linear(size, config.alias_dim)
        self.topics = topics
        self.post_init()  # type: ignore[no-untyped-call]

    # -- p(x, z) --------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> RelationState:
        """State of texts whose topics are given, to ``encode`` after."""
        topics = [self.knowledge.number(name) for name in names]
        return RelationState.begin(torch.tensor(topics))

    def encode(self, batch: TokenBatch, after: RelationState | None = None) -> Encoded:
        nothing = torch.zeros(len(batch.length), dtype=torch.long)
        state = after or RelationState.begin(nothing)
        embedded = self.words.embed(batch.inputs)
        hidden, carry = self.trunk(embedded, batch.length, state.carry)
        return self._scored(batch, self._informed(hidden, state), state, carry)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: RelationState | None
    ) -> Encoded:
        return self._scored(batch, encoded.value, after or encoded.state, encoded.carry)

    def _scored(
        self, batch: TokenBatch, value: Tensor, state: RelationState, carry: Any
    ) -> Encoded:
        # By place: the first word of every text, then the second, ...
        by_position = value.transpose(0, 1).flatten(0, 1)
        log_source = widened(self.selector(by_position).log_softmax(-1))
        word = log_source[:, 0].view(value.shape[1], -1).t()
        word = word + self._log_words(value, batch)
        word = word.masked_fill(~batch.inside, 0.0).clamp_min(FLOOR)
        arcs = self._arcs(batch, state)
        score = log_source[sent(arcs.position, value.device), 1]
        score = score + self._log_namings(by_position, arcs)
        costs = Lattice(
            batch.on_host[1],
            word,
            arcs,
            score,
            self.knowledge.log_prior[arcs.topic - 1].double(),
            _keys(state, self.knowledge.num_topics),
            self.knowledge.num_topics,
        )
        return Encoded(batch, value, costs, state, carry, self.knowledge)

    def log_joint(self, encoded: Encoded, latents: Readings | Tensor) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64.

        Latents of shape (B, K, 0) stand for the sum over all readings: log p(x).
        """
        if isinstance(latents, Tensor):
            log_p, _ = encoded.summed
            return log_p[:, None].expand(-1, latents.shape[1])
        return log_readings(encoded, latents)

    def advance(self, encoded: Encoded, latents: Readings | Tensor) -> RelationState:
        if isinstance(latents, Tensor):
            _, state = encoded.summed
            size = len(state.topic), latents.shape[1]
            return state.resample(torch.zeros(size, dtype=torch.long))
        return after_readings(encoded, latents)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        state, value = encoded.state, encoded.value[:, 0]
        coming = self.knowledge.word(state.naming.clamp_min(0), state.offset)
        columns = state.topic, state.naming, state.log_share, coming
        topics, namings, log_share, coming = (sent(x, value.device) for x in columns)
        log_w = log_w.log_softmax(-1)[..., None] + log_share
        log_source = widened(self.selector(value).log_softmax(-1))
        log_words = widened(self.words.log_probs(value))
        rows = []
        for b, weight in enumerate(log_w.exp()):
            topic, naming = topics[b].flatten(), namings[b].flatten()
            share = weight.flatten()
            between = naming < 0
            free = share.masked_fill(~between, 0.0)
            by_topic = free.new_zeros(self.config.num_topics + 1)
            by_topic = by_topic.index_add(0, topic, free)
            named = self._first_words(value[b], by_topic) * log_source[b, 1].exp()
            mixed = named.new_zeros(self.config.num_words)
            going, inner = coming[b].flatten(), share.masked_fill(between, 0.0)
            mixed = mixed.index_add(0, going, inner)
            uttered = log_words[b].exp() * free.sum() * log_source[b, 0].exp()
            mixed[: len(uttered)] += uttered
            rows.append((mixed + named).log())
        return torch.stack(rows)

    def _first_words(self, value: Tensor, by_topic: Tensor) -> Tensor:
        """Probability of each word as the first of a name, (num_words,).

        Args:
            value: Hidden state, (inner,).
            by_topic: Probability of no topic yet, and of each, (num_topics + 1,).
        """
        topics = self.knowledge
        prior = sent(topics.log_prior, value.device).exp()
        prob = by_topic[1:] + by_topic[0] * prior
        (likely,) = fetched(prob)[0].nonzero(as_tuple=True)
        naming = expand_ranges(*topics.facts_of(likely + 1))[0]
        naming, _ = expand_ranges(*topics.namings_of(naming))
        nothing = torch.zeros_like(naming)
        arcs = Arcs(
            nothing, nothing, nothing, nothing, naming, topics.naming_topic[naming]
        )
        log_p = self._log_namings(value[None], arcs)
        mass = prob[sent(arcs.topic - 1, prob.device)] * log_p.exp()
        first = sent(topics.word(naming, nothing), prob.device)
        return mass.new_zeros(self.config.num_words).index_add(0, first, mass)

    # -- what a reading is made of ----------------------------------------------------

    def _informed(self, hidden: Tensor, state: RelationState) -> Tensor:
        if not self.config.knowledge_vector:
            return hidden
        topic = state.topic[:, 0, 0]
        if self.config.num_topics == 1:
            topic = torch.ones_like(topic)
        if bool((topic == 0).any()):
            raise ValueError(
                "this model predicts every word from what the text is about "
                "(knowledge_vector), so it cannot be left open: encode the text after "
                "about([topic])"
            )
        fact, row = expand_ranges(*self.knowledge.facts_of(topic))
        vectors = self.facts.vectors(self.knowledge, fact)
        total = hidden.new_zeros(len(topic), vectors.shape[-1])
        row, count = (sent(x, total.device) for x in (row, row.bincount()[:, None]))
        mean = total.index_add(0, row, vectors) / count
        return torch.cat([hidden, mean[:, None].expand(*hidden.shape[:2], -1)], -1)

    def _log_words(self, value: Tensor, batch: TokenBatch) -> Tensor:
        """Log p(x_t | plain word), its spelling included, (B, T) float64."""
        index = batch.inside_on_host.flatten().nonzero()[:, 0]
        index = sent(index, value.device)
        word, cost = batch.uttered(self.config.vocab_size)
        value = value.flatten(0, 1)
        parts = [
            widened(self.words.log_prob(value[part], word.flatten()[part]))
            for (part,) in in_parts(self.config.vocab_size, index)
        ]
        log_p = torch.zeros_like(cost.flatten()).index_copy(0, index, torch.cat(parts))
        return log_p.view_as(cost) + cost

    def _arcs(self, batch: TokenBatch, state: RelationState) -> Arcs:
        arcs, num_topics = find_arcs(self.knowledge, batch), self.knowledge.num_topics
        open_still = ((state.topic == 0) & state.used).any(-1).any(-1)
        key = arcs.text * (num_topics + 1) + arcs.topic
        return arcs.select(
            open_still[arcs.text] | torch.isin(key, _keys(state, num_topics))
        )

    def _log_namings(self, by_position: Tensor, arcs: Arcs) -> Tensor:
        """Log p(fact, alias | name, topic) of arcs, (N,) float64."""
        topics = self.knowledge
        fact = topics.naming_fact[arcs.naming]
        log_p = widened(
            log_choice(
                self.to_fact(by_position),
                arcs.position,
                arcs.topic,
                fact,
                topics.facts_of,
                lambda facts: self.facts.vectors(topics, facts),
            )
        )
        if self.config.oracle:
            return log_p
        log_alias = log_choice(
            self.to_alias(by_position),
            arcs.position,
            fact,
            arcs.naming,
            topics.namings_of,
            lambda namings: self.facts.aliases(topics, topics.naming_alias[namings]),
        )
        return log_p + widened(log_alias)

    # -- q(z | x) -------------------------------------------------------------------

    @property
    def summation(self) -> NoLatents:
        """Proposal of one latent, the sum over all readings."""
        return NoLatents()

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> Posterior | Adapted:
        """Build a proposal.

        Args:
            name: ``posterior``, p(z | x) itself by backward sums over whole texts
                (default); or ``adapted``, which goes from left to right and weighs the
                rest of the piece as plain words.
            temperature: Divides the logarithms of p's factors.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        adapted = Adapted(self, temperature)
        return Posterior(adapted) if name == "posterior" else adapted


def _keys(state: RelationState, num_topics: int) -> Tensor:
    """Distinct (text, topic) pairs of the states, as lattices need them."""
    has_topic = state.used & (state.topic != 0)
    text, _, _ = has_topic.nonzero(as_tuple=True)
    keys: Tensor = (text * (num_topics + 1) + state.topic[has_topic]).unique()
    return keys


# -- proposals ----------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """An encoded piece of text with the masses that its steps are weighed by."""

    encoded: Encoded
    ahead: Callable[[Lattice], Tensor]
    """Function from a lattice to the log mass after each border, or its approximation,
    (T + 1, num_rows)."""
    temperature: float

    @property
    def batch(self) -> TokenBatch:
        return self.encoded.batch

    @cached_property
    def steps(self) -> ReadingSteps:
        lattice = tempered(self.encoded.lattice, self.temperature)
        return reading_steps(self.encoded, lattice, self.ahead(lattice))


@dataclass(frozen=True)
class LatticeProposal(StepProposal):
    """q(z | x) of readings, weighed by the mass of the rest of the lattice."""

    def drawn_steps(self, encoded: Planned) -> ReadingSteps:
        return encoded.steps

    searched_steps = drawn_steps

    def histories(self, encoded: Planned) -> int:
        return encoded.encoded.state.topic.shape[1]

    def latents(self, encoded: Planned, found: Sampled | Found) -> Readings:
        return encoded.encoded.options.readings(*found.columns)

    def known_log_p(
        self,
        encoded: Planned,
        found: Sampled | Found,
        latents: Readings,
    ) -> Tensor:
        return log_options(encoded.encoded, *found.columns)

    def log_prob(self, encoded: Planned, readings: Readings) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
        option = encoded.encoded.options.found(Readings(*fetched(*readings)))
        log_q = steps.log_prob(self.drawn_steps(encoded), (option,), 1.0)
        return sent(log_q, encoded.encoded.value.device)


@dataclass(frozen=True)
class Adapted(LatticeProposal):
    """q(z | x) from left to right: p's factors, and the rest as plain words."""

    model: LRLM
    temperature: float
    name = "adapted"

    def encode(self, batch: TokenBatch, after: RelationState | None = None) -> Planned:
        encoded = self.model.encode(batch, after)
        return Planned(encoded, words_ahead, self.temperature)

    def encode_again(
        self, planned: Planned, batch: TokenBatch, after: RelationState | None
    ) -> Planned:
        encoded = planned.encoded
        encoded = replace(encoded, batch=batch, state=after or encoded.state)
        return replace(planned, encoded=encoded)

    def sample_from(
        self, encoded: Planned, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws, Tensor]:
        """Draw K readings a text, which continue the given histories, (B, K).

        Draws are on the host; all log-probabilities arrive in one wait.
        """
        (origin,) = encoded.encoded.fetched(origin)
        return super().sample_from(encoded, uniforms, origin)

    def advance(self, planned: Planned, readings: Readings) -> RelationState:
        return after_readings(planned.encoded, readings)


@dataclass(frozen=True)
class Posterior(LatticeProposal):
    """q(z | x) = p(z | x), by backward sums: every importance weight is p(x)."""

    adapted: Adapted
    name = "posterior"

    @property
    def left_to_right(self) -> Adapted:
        return self.adapted

    def encode(self, batch: TokenBatch, after: None = None) -> Planned:
        encoded = self.adapted.model.encode(batch)
        return Planned(encoded, Lattice.backward, self.adapted.temperature)
