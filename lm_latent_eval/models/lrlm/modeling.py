r"""LRLM: a language model that names the relations of what a text is about.

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
models exclude padding and start, and encode names by their letters (``facts.py``).
Source: Hayashi et al. (2020), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.latent import Beam, Draws, Mass, Uniforms
from lm_latent_eval.models.kglm.ragged import expand_ranges, ranked_within
from lm_latent_eval.models.lrlm.arcs import Arcs, find_arcs
from lm_latent_eval.models.lrlm.choices import log_choice
from lm_latent_eval.models.lrlm.configuration import LRLMConfig, RelationConfig
from lm_latent_eval.models.lrlm.facts import Facts
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, log_sum, sunk
from lm_latent_eval.models.lrlm.reading import (
    Plan,
    beam_readings,
    log_prob_readings,
    sample_readings,
)
from lm_latent_eval.models.lrlm.state import (
    WORD,
    Everything,
    Readings,
    RelationState,
    after_last,
)
from lm_latent_eval.models.lrlm.topics import FILE_NAME, PAD, Topics, TopicsError
from lm_latent_eval.models.lrlm.transformer_xl import TransformerXL
from lm_latent_eval.models.lrlm.words import Words
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.recurrent import RecurrentStack, initialise
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START, UNKNOWN

TABLE = 1 << 24
"""Scores (tokens x words, or places x facts) held at a time."""


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with everything that no reading changes."""

    batch: TokenBatch
    value: Tensor
    """What everything is predicted from, (B, T, inner)."""
    lattice: Lattice
    state: RelationState
    """Where the readings before the pieces stand."""
    carry: Any
    topics: Topics

    @cached_property
    def summed(self) -> tuple[Tensor, RelationState]:
        """Log p of the pieces, (B,), and the state of all readings after them."""
        return _sum(self)


class LRLM(Pretrained):
    """A latent relation language model with its proposals and its topics.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken`` and ``Summable`` for p;
    ``proposal`` gives a matching q.
    """

    config_class = LRLMConfig
    base_model_prefix = "lrlm"
    main_input_name = "inputs"
    estimators = ("exact", "auto", "mixed", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("posterior", "adapted")
    """What ``proposal`` can return, the default first."""
    config: LRLMConfig

    def __init__(self, config: LRLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config)
        inner = [config.hidden_size] * config.num_layers
        self.trunk = (
            RecurrentStack([config.embedding_dim, *inner], config.dropout)
            if config.trunk == "lstm"
            else TransformerXL(config)
        )
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

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)

    # -- files ----------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        """Write the topics."""
        self.knowledge.save(directory)

    def load_extras(self, directory: Path) -> None:
        """Read the topics.

        Raises:
            TopicsError: If they are missing, damaged or of another model.
        """
        topics = Topics.load(directory)
        check_fit(topics, self.config, directory)
        self.topics = topics.to(self.device)

    def check_extras(self) -> None:
        """Nothing is left to check: the topics are checked when they are read."""

    @property
    def knowledge(self) -> Topics:
        """The topics; an error if the model has none yet."""
        if self.topics is None:
            raise ValueError("this LRLM has no topics: pass topics=")
        return self.topics

    @property
    def mass(self) -> Mass:
        """What its probabilities of all texts total."""
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        if self.config.oracle:  # every alias of a fact has all of its probability
            return Mass.UNNORMALISED
        return Mass.ONE if excluded else Mass.LESS

    # -- p(x, z) --------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> RelationState:
        """Return the state of texts whose topics are given, to ``encode`` after."""
        numbers = [self.knowledge.number(name) for name in names]
        return RelationState.begin(torch.tensor(numbers, device=self.device))

    def encode(self, batch: TokenBatch, after: RelationState | None = None) -> Encoded:
        """Read the tokens before each target and score all that a reading can do."""
        state = after or RelationState.begin(torch.zeros_like(batch.length))
        embedded = self.words.embed(batch.inputs)
        hidden, carry = self.trunk(embedded, batch.length, state.carry)
        value = self._informed(hidden, state)
        # By place: the first word of every text, then the second, ...
        by_place = value.transpose(0, 1).flatten(0, 1)
        log_source = self.selector(by_place).log_softmax(-1).double()
        word = log_source[:, 0].view(value.shape[1], -1).t()
        word = word + self._log_words(value, batch)
        arcs = self._arcs(batch, state)
        score = log_source[arcs.place, 1] + self._log_namings(by_place, arcs)
        lattice = Lattice(
            batch.length,
            word.masked_fill(~batch.inside, 0.0).clamp_min(FLOOR),
            arcs,
            score,
            self.knowledge.log_prior[arcs.topic - 1].double(),
            _keys(state, self.knowledge.num_topics),
            self.knowledge.num_topics,
        )
        return Encoded(batch, value, lattice, state, carry, self.knowledge)

    def log_joint(self, encoded: Encoded, latents: Readings | Everything) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64; of everything, log p(x)."""
        if isinstance(latents, Everything):
            log_p, _ = encoded.summed
            return log_p[:, None].expand(-1, latents.choice.shape[1])
        return _log_readings(encoded, latents)

    def advance(
        self, encoded: Encoded, latents: Readings | Everything
    ) -> RelationState:
        """Return the state after the encoded piece."""
        if isinstance(latents, Everything):
            _, state = encoded.summed
            copies = torch.zeros(
                len(state.topic),
                latents.choice.shape[1],
                dtype=torch.long,
                device=self.device,
            )
            return state.resample(copies)
        return _after_readings(encoded, latents)

    def next_token(self, encoded: Encoded, log_w: Tensor) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        state, value = encoded.state, encoded.value[:, 0]
        log_w = log_w.log_softmax(-1)[..., None] + state.log_share
        log_source = self.selector(value).log_softmax(-1).double()
        log_words = self.words.log_probs(value).double()
        rows = []
        for b, weight in enumerate(log_w.exp()):
            topic, naming = state.topic[b].flatten(), state.naming[b].flatten()
            share, offset = weight.flatten(), state.offset[b].flatten()
            between = naming < 0
            free = share.masked_fill(~between, 0.0)
            by_topic = free.new_zeros(self.config.num_topics + 1)
            by_topic = by_topic.index_add(0, topic, free)
            named = self._first_words(value[b], by_topic) * log_source[b, 1].exp()
            mixed = named.new_zeros(self.config.num_words)
            going = self.knowledge.word(naming[~between], offset[~between])
            mixed = mixed.index_add(0, going, share[~between])
            uttered = log_words[b].exp() * free.sum() * log_source[b, 0].exp()
            mixed[: len(uttered)] += uttered
            rows.append((mixed + named).log())
        return torch.stack(rows)

    def _first_words(self, value: Tensor, by_topic: Tensor) -> Tensor:
        """Return what a name begins with, given how probable topics are.

        Args:
            value: What it is predicted from, (inner,).
            by_topic: Probability of no topic yet, and of each, (num_topics + 1,).
        """
        topics = self.knowledge
        prob = by_topic[1:] + by_topic[0] * topics.log_prior.double().exp()
        (some,) = prob.nonzero(as_tuple=True)
        naming = expand_ranges(*topics.facts_of(some + 1))[0]
        naming, _ = expand_ranges(*topics.namings_of(naming))
        nothing = torch.zeros_like(naming)
        arcs = Arcs(
            nothing, nothing, nothing, nothing, naming, topics.naming_topic[naming]
        )
        log_p = self._log_namings(value[None], arcs)
        mass = prob[arcs.topic - 1] * log_p.exp()
        first = topics.word(naming, nothing)
        return mass.new_zeros(self.config.num_words).index_add(0, first, mass)

    # -- what a reading is made of ----------------------------------------------------

    def _informed(self, hidden: Tensor, state: RelationState) -> Tensor:
        """Add the knowledge vector, if the model predicts from it."""
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
        mean = total.index_add(0, row, vectors) / row.bincount()[:, None]
        return torch.cat([hidden, mean[:, None].expand(*hidden.shape[:2], -1)], -1)

    def _log_words(self, value: Tensor, batch: TokenBatch) -> Tensor:
        """Return log p(x_t | a word), its spelling included, (B, T) float64."""
        inside = batch.inside
        at_once = max(1, TABLE // self.config.vocab_size)
        known = self.words.known(batch.targets)
        parts = [
            self.words.log_prob(some, words).double()
            for some, words in zip(
                value[inside].split(at_once),
                known[inside].split(at_once),
                strict=True,
            )
        ]
        cost = batch.unknown_log_prob.masked_fill(known != UNKNOWN, 0.0)
        log_p = torch.zeros_like(cost).masked_scatter(inside, torch.cat(parts))
        return log_p + cost

    def _arcs(self, batch: TokenBatch, state: RelationState) -> Arcs:
        """Find the names in texts, of topics that they may be about."""
        arcs, num_topics = find_arcs(self.knowledge, batch), self.knowledge.num_topics
        open_still = ((state.topic == 0) & state.used).any(-1).any(-1)
        key = arcs.text * (num_topics + 1) + arcs.topic
        return arcs.select(
            open_still[arcs.text] | torch.isin(key, _keys(state, num_topics))
        )

    def _log_namings(self, by_place: Tensor, arcs: Arcs) -> Tensor:
        """Return log p(fact, alias | a name, the topic) of arcs, (N,) float64."""
        topics = self.knowledge
        fact = topics.naming_fact[arcs.naming]
        log_p = log_choice(
            self.to_fact(by_place),
            arcs.place,
            arcs.topic,
            fact,
            topics.facts_of,
            lambda some: self.facts.vectors(topics, some),
        ).double()
        if self.config.oracle:
            return log_p
        log_alias = log_choice(
            self.to_alias(by_place),
            arcs.place,
            fact,
            arcs.naming,
            topics.namings_of,
            lambda some: self.facts.aliases(topics, topics.naming_alias[some]),
        )
        return log_p + log_alias.double()

    # -- q(z | x) -------------------------------------------------------------------

    @property
    def summation(self) -> Summation:
        """What stands in for a proposal where all readings are summed."""
        return Summation()

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> Posterior | Adapted:
        """Return a proposal.

        Args:
            name: ``posterior``, p(z | x) itself by backward sums over whole texts
                (default); or ``adapted``, which goes from left to right and weighs what
                follows as if it were words, to the end of the piece at hand.
            temperature: Divides the logarithms of what p charges.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        adapted = Adapted(self, temperature)
        return Posterior(adapted) if name == "posterior" else adapted


@dataclass(frozen=True)
class Summation:
    """All readings as one latent: what ``exact`` takes for a proposal.

    It reads nothing, so that texts are encoded once, by the model.
    """

    name = "sum"

    def encode(self, batch: TokenBatch, after: Unmoved | None = None) -> TokenBatch:
        """Return the piece as it is."""
        return batch

    def sample(
        self, batch: TokenBatch, uniforms: Uniforms, num_samples: int
    ) -> Draws[Everything]:
        """Draw everything, K times, with log q = 0."""
        zeros = batch.unknown_log_prob.new_zeros(len(batch.length), num_samples)
        return Draws(Everything(zeros.new_empty(*zeros.shape, 0).long()), zeros)

    def beam(
        self, batch: TokenBatch, width: int, score: Tensor | None = None
    ) -> Beam[Everything]:
        """Return the one latent there is."""
        zeros = batch.unknown_log_prob.new_zeros(len(batch.length), 1)
        return Beam(
            Everything(zeros.new_empty(*zeros.shape, 0).long()), zeros, zeros.long()
        )

    def advance(self, batch: TokenBatch, latents: Everything) -> Unmoved:
        """Return the state after the piece, which is none."""
        return Unmoved()


@dataclass(frozen=True)
class Unmoved:
    """The state of what reads nothing."""

    def select(self, index: Tensor) -> Unmoved:
        """Pick texts."""
        return self

    def resample(self, index: Tensor) -> Unmoved:
        """Pick latents of each text."""
        return self


@dataclass(frozen=True)
class Planned:
    """A piece of text, encoded, and how to go through it."""

    encoded: Encoded
    plan: Plan


@dataclass(frozen=True)
class Adapted:
    """q(z | x) from left to right: p's costs, and what follows as if it were words."""

    model: LRLM
    temperature: float
    name = "adapted"

    def encode(self, batch: TokenBatch, after: RelationState | None = None) -> Planned:
        """Read a piece of text as the model does."""
        encoded = self.model.encode(batch, after)
        return Planned(encoded, Plan.plain(_tempered(encoded, self.temperature)))

    def sample(
        self, planned: Planned, uniforms: Uniforms, num_samples: int
    ) -> Draws[Readings]:
        """Draw K readings a text, continuing the K histories if there are any."""
        encoded = planned.encoded
        return sample_readings(
            planned.plan, encoded.topics, encoded.state, uniforms, num_samples
        )

    def log_prob(self, planned: Planned, readings: Readings) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        return log_prob_readings(planned.plan, planned.encoded.state, readings)

    def beam(
        self, planned: Planned, width: int, score: Tensor | None = None
    ) -> Beam[Readings]:
        """Find up to ``width`` distinct readings of high p, by what p charges them."""
        encoded = planned.encoded
        agrees = _goes_on(encoded).all(-1)
        return beam_readings(
            planned.plan, encoded.topics, agrees, encoded.state, width, score
        )

    def advance(self, planned: Planned, readings: Readings) -> RelationState:
        """Return the state after the encoded piece."""
        return _after_readings(planned.encoded, readings)


@dataclass(frozen=True)
class Posterior:
    """q(z | x) = p(z | x), by backward sums: every importance weight is p(x)."""

    left_to_right: Adapted
    name = "posterior"

    def encode(self, batch: TokenBatch) -> Planned:
        """Read whole texts as the model does."""
        encoded = self.left_to_right.model.encode(batch)
        lattice = _tempered(encoded, self.left_to_right.temperature)
        return Planned(encoded, Plan.exact(lattice))

    def sample(
        self, planned: Planned, uniforms: Uniforms, num_samples: int
    ) -> Draws[Readings]:
        """Draw K readings a text."""
        return self.left_to_right.sample(planned, uniforms, num_samples)

    def log_prob(self, planned: Planned, readings: Readings) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        return self.left_to_right.log_prob(planned, readings)

    def beam(
        self, planned: Planned, width: int, score: Tensor | None = None
    ) -> Beam[Readings]:
        """Find up to ``width`` distinct readings of high p(z | x)."""
        return self.left_to_right.beam(planned, width, score)


# -- readings, one by one and all at once -------------------------------------------


def _log_readings(encoded: Encoded, readings: Readings) -> Tensor:
    """Return log p(x, z_k) in nats, (B, K) float64."""
    lattice, topics = encoded.lattice, encoded.topics
    source, offset = readings
    batch, samples, num_tokens = source.shape
    inside = encoded.batch.inside[:, None].expand_as(source)
    naming = (source - 1).clamp_min(0)
    begins = (source != WORD) & (offset == 0) & inside
    follows = (source != WORD) & (offset > 0) & inside
    words = lattice.word[:, None].masked_fill(~((source == WORD) & inside), 0.0)
    total = words.sum(-1)

    texts = torch.arange(batch, device=source.device)[:, None, None]
    place = torch.arange(num_tokens, device=source.device) * batch + texts
    many = len(topics.naming_alias)
    key = lattice.arcs.place * many + lattice.arcs.naming
    wanted = (place * many + naming)[begins]
    last = max(len(key) - 1, 0)
    where = torch.searchsorted(key, wanted).clamp_max(last)
    cost = lattice.score.new_full(wanted.shape, -torch.inf)
    if len(key):
        found = key[where] == wanted
        cost = torch.where(found, lattice.score[where], cost)
    total = total + torch.zeros_like(words).masked_scatter(begins, cost).sum(-1)

    said = encoded.batch.targets[:, None].expand_as(source)
    wrong = follows & (topics.word(naming, offset) != said)
    before, _, _ = encoded.state.expanded(samples)
    topic = _topic_after(encoded, readings)
    wrong = wrong | (begins & (topics.naming_topic[naming] != topic[..., None]))
    new = (before == 0) & (topic != 0)
    prior = topics.log_prior.double()[(topic - 1).clamp_min(0)]
    total = total + prior.masked_fill(~new, 0.0)
    return sunk(total).masked_fill(wrong.any(-1), -torch.inf)


def _topic_after(encoded: Encoded, readings: Readings) -> Tensor:
    """Return the topic that is known after a piece, 0 for none, (B, K)."""
    source, offset = readings
    before, _, _ = encoded.state.expanded(source.shape[1])
    if not source.shape[-1]:
        return before
    begins = (source != WORD) & (offset == 0) & encoded.batch.inside[:, None]
    first = begins.long().argmax(-1, keepdim=True)
    naming = (source.gather(-1, first)[..., 0] - 1).clamp_min(0)
    named = encoded.topics.naming_topic[naming]
    return torch.where((before == 0) & begins.any(-1), named, before)


def _after_readings(encoded: Encoded, readings: Readings) -> RelationState:
    topic = _topic_after(encoded, readings)
    _, naming, coming = encoded.state.expanded(readings.source.shape[1])
    last = (encoded.batch.length - 1)[:, None, None].clamp_min(0)
    nothing = (encoded.batch.length == 0)[:, None]
    if readings.source.shape[-1]:
        last = last.expand(*topic.shape, 1)
        source, offset = (column.gather(-1, last)[..., 0] for column in readings)
        source = torch.where(nothing, naming + 1, source)
        offset = torch.where(nothing, coming - 1, offset)
    else:
        source, offset = naming + 1, coming - 1
    return after_last(encoded.topics, encoded.carry, topic, source, offset)


def _goes_on(encoded: Encoded) -> Tensor:
    """Whether open names go on as their texts do, (B, K, H); true where none is."""
    state, topics, words = encoded.state, encoded.topics, encoded.batch.targets
    width = topics.alias_words.shape[1]
    step = torch.arange(width, device=words.device)
    name = topics.alias_words[topics.naming_alias[state.naming.clamp_min(0)]]
    name = F.pad(name, (0, width), value=PAD)
    name = name.gather(-1, state.offset[..., None] + step)
    said = words.masked_fill(~encoded.batch.inside, PAD)
    said = F.pad(said, (0, width), value=PAD)[:, None, None, :width]
    agrees = ((name == said) | (name == PAD) | (said == PAD)).all(-1)
    return agrees | (state.naming < 0)


def _sum(encoded: Encoded) -> tuple[Tensor, RelationState]:
    """Return log p of pieces, (B,), and the state of all readings after them."""
    state, lattice, topics = encoded.state, encoded.lattice, encoded.topics
    if state.topic.shape[1] != 1:
        raise ValueError(f"{state.topic.shape[1]} histories cannot be summed into one")
    used = state.used & _goes_on(encoded)
    text, _, _ = used.nonzero(as_tuple=True)
    columns = (state.topic, state.naming, state.offset, state.log_share)
    topic, naming, offset, share = (column[used] for column in columns)
    row, between = lattice.row(text, topic), naming < 0
    begin = log_sum(share[between], row[between], lattice.num_rows)
    row, end = row[~between], (topics.length(naming.clamp_min(0)) - offset)[~between]
    beyond = end > lattice.length[text[~between]]
    early = (row[~beyond], end[~beyond], share[~between][~beyond])
    alpha, through = lattice.forward(begin, early)

    out, arcs = lattice.leads_out, lattice.arcs
    length = lattice.length
    ends = alpha.gather(0, length[lattice.text][None])[0]
    parts = (
        (lattice.text, arcs.text[out], text[~between][beyond]),
        (lattice.topic, arcs.topic[out], topic[~between][beyond]),
        (
            torch.full_like(lattice.topic, -1),
            arcs.naming[out],
            naming[~between][beyond],
        ),
        (
            torch.zeros_like(lattice.topic),
            (length[arcs.text] - arcs.start)[out],
            (offset + length[text])[~between][beyond],
        ),
        (ends, through[out], share[~between][beyond]),
    )
    text, topic, naming, offset, mass = (torch.cat(part) for part in parts)
    log_p = log_sum(mass, text, lattice.num_texts)
    share = sunk(mass) - log_p[text].clamp_min(FLOOR / 4)
    kept = share > -torch.inf
    after = _padded(
        encoded.carry,
        lattice.num_texts,
        *(column[kept].detach() for column in (text, topic, naming, offset, share)),
    )
    return sunk(log_p), after


def _padded(
    carry: Any,
    num_texts: int,
    text: Tensor,
    topic: Tensor,
    naming: Tensor,
    offset: Tensor,
    share: Tensor,
) -> RelationState:
    """Put what there is of each text side by side."""
    order, rank = ranked_within(text, share)
    size = (num_texts, 1, int(rank.max()) + 1 if len(rank) else 1)
    index = (text[order], torch.zeros_like(rank), rank)
    columns = (
        column.new_full(size, nothing).index_put(index, column[order])
        for column, nothing in (
            (topic, 0),
            (naming, -1),
            (offset, 0),
            (share, -torch.inf),
        )
    )
    return RelationState(carry, *columns)


def _tempered(encoded: Encoded, temperature: float) -> Lattice:
    lattice = encoded.lattice
    return replace(
        lattice,
        word=(lattice.word / temperature).clamp_min(FLOOR),
        score=lattice.score / temperature,
        log_prior=lattice.log_prior / temperature,
    )


def _keys(state: RelationState, num_topics: int) -> Tensor:
    """Return the texts and topics that readings have got to, as lattices need them."""
    known = state.used & (state.topic != 0)
    text, _, _ = known.nonzero(as_tuple=True)
    keys: Tensor = (text * (num_topics + 1) + state.topic[known]).unique()
    return keys


def to_facts(inner: int, hidden: int, outer: int) -> nn.Module:
    """Build the map from what is predicted from to fact vectors."""
    if not hidden:
        return nn.Linear(inner, outer)
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, outer))


def check_fit(topics: Topics, config: RelationConfig, directory: Path) -> None:
    """Hold topics against the model that they belong to.

    Raises:
        TopicsError: If they are another model's.
    """
    for name, size in topics.sizes().items():
        if size != getattr(config, name):
            raise TopicsError(
                f"{directory / FILE_NAME} has {name}={size}, the model "
                f"{getattr(config, name)}: it belongs to another checkpoint"
            )
    for name, column, limit in (
        ("a relation", topics.fact_relation, config.num_relations),
        ("an object", topics.fact_object, config.num_objects or None),
        ("a word of an alias", topics.alias_words, config.num_words),
        ("a piece of an alias", topics.alias_pieces, config.num_pieces),
    ):
        if limit is not None and len(column) and int(column.max()) >= limit:
            raise TopicsError(
                f"{directory / FILE_NAME}: {name} is not one of {limit}: it belongs "
                "to another checkpoint"
            )
