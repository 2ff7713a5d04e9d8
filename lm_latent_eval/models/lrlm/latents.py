"""Segmentations of texts into words and names, their scores and their state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import ranked_within
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, log_sum, sunk
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.text.batch import TokenBatch

WORD = 0
"""Source of a word outside names."""


class Readings(NamedTuple):
    """K readings of B texts: the source of every word."""

    source: Tensor
    """``WORD``, or 1 + the naming that the word belongs to, (B, K, T)."""
    offset: Tensor
    """Index of the word in that name, (B, K, T)."""


@dataclass(frozen=True)
class RelationState:
    """State of B texts with K latents each.

    A latent is one reading, or H readings that have been summed. All but the recurrent
    state is on the host.
    """

    carry: Any
    """Recurrent state; None before the first word."""
    topic: Tensor
    """Topic, 0 if not known yet, (B, K, H)."""
    naming: Tensor
    """Unfinished name, -1 for none, (B, K, H)."""
    offset: Tensor
    """Index of its next word, (B, K, H)."""
    log_share: Tensor
    """Log of each reading's share of its latent, (B, K, H) float64; ``-inf`` for
    padding."""

    @classmethod
    def begin(cls, topic: Tensor) -> RelationState:
        """State of texts before their first word, (B,)."""
        topic = topic[:, None, None]
        nothing = torch.zeros_like(topic)
        return cls(None, topic, nothing - 1, nothing, widened(nothing))

    def select(self, index: Tensor) -> RelationState:
        return self._picked(index, self.carry and self.carry.select(index))

    def resample(self, index: Tensor) -> RelationState:
        texts = torch.arange(len(index))[:, None]
        return self._picked((texts, index), self.carry)

    def _picked(self, index: Any, carry: Any) -> RelationState:
        return RelationState(
            carry,
            self.topic[index],
            self.naming[index],
            self.offset[index],
            self.log_share[index],
        )

    @property
    def used(self) -> Tensor:
        return self.log_share > -torch.inf


@dataclass(frozen=True)
class Options:
    """Words and names that readings of pieces consist of, numbered, on the host.

    There are M. The first N begin in the pieces, in the order of border, row and
    source. Then come names that continue with their next word, one for each that
    begins, and last the unfinished options of the B K histories.
    """

    source: Tensor
    """Sources, (M,), like the following columns."""
    start: Tensor
    """Border before the first word, negative if that is in an earlier piece."""
    end: Tensor
    """Border after the last word."""
    row: Tensor
    """Row of the lattice after it."""
    charge: Tensor
    """Index of its cost in ``Lattice.charges``."""
    then: Tensor
    """Option after its first word: the continued name, or itself."""
    until: Tensor
    """Border of the next option; past the last border if there is none."""
    first: Tensor
    """First option that may begin there."""
    last: Tensor
    """One past the last such option."""
    key: Tensor
    """Border, row and source of those that begin, as one increasing key, (N,)."""
    lattice: Lattice
    topics: Topics
    topic: Tensor
    """Topics of the histories, 0 if not known yet, (B, K)."""

    @classmethod
    def of(
        cls, lattice: Lattice, topics: Topics, state: RelationState, agrees: Tensor
    ) -> Options:
        """List the options at every border, and the unfinished options of histories.

        Args:
            lattice: Lattice of B texts.
            topics: The names.
            state: State of the histories.
            agrees: Whether the unfinished name of each agrees with the text, (B, K).

        Raises:
            ValueError: If the histories have been summed.
        """
        if state.topic.shape[-1] != 1:
            raise ValueError("readings that have been summed cannot go on one by one")
        arcs, rows, num_tokens = lattice.arcs, lattice.num_rows, lattice.word.shape[1]
        every = torch.arange(rows).repeat(num_tokens)
        border = torch.arange(num_tokens).repeat_interleave(rows)
        before = torch.cat([every, lattice.arc_row, arcs.text])
        source = torch.cat([torch.full_like(every, WORD), *[arcs.naming + 1] * 2])
        start = torch.cat([border, arcs.start, arcs.start])
        end = torch.cat([border + 1, arcs.end, arcs.end])
        row = torch.cat([every, lattice.arc_row, lattice.arc_row])
        uttered = lattice.text[every] * num_tokens + border
        named = lattice.word.numel() + torch.arange(2 * len(arcs.start))
        charge = 1 + torch.cat([uttered, named])
        many = 1 + len(topics.naming_alias)
        key, order = ((start * rows + before) * many + source).sort()
        (names,) = (source[order] != WORD).nonzero(as_tuple=True)
        topic, naming, offset = (
            column[..., 0] for column in (state.topic, state.naming, state.offset)
        )
        left = topics.length(naming.clamp_min(0)) - offset
        state_row = lattice.row(torch.arange(len(topic))[:, None], topic)
        every = torch.cat([order, order[names]])
        source, start, end, row = (
            torch.cat([of_piece[every], so_far.flatten()])
            for of_piece, so_far in (
                (source, naming + 1),
                (start, -offset),
                (end, left.masked_fill(naming < 0, 0)),
                (row, state_row),
            )
        )
        then = torch.arange(len(source))
        then[names] = len(order) + torch.arange(len(names))
        impossible = (~agrees).flatten() * (1 + lattice.word.numel() + len(named))
        begin = torch.arange((num_tokens + 1) * rows + 1) * many
        begin = torch.searchsorted(key, begin)
        after = end.clamp_max(num_tokens) * rows + row
        return cls(
            source,
            start,
            end,
            row,
            torch.cat([charge[order], names * 0, impossible]),
            then,
            end.masked_fill(end >= lattice.length[lattice.text[row]], num_tokens),
            begin[after],
            begin[after + 1],
            key,
            lattice,
            topics,
            topic,
        )

    def histories(self, samples: int | None) -> Tensor:
        """Options that K readings continue from, or all histories', (B, K)."""
        batch, size = self.topic.shape
        if size not in (1, samples or size):
            raise ValueError(f"{size} histories cannot continue in {samples} readings")
        option = torch.arange(batch * size) + len(self.source) - batch * size
        return option.view(batch, size).expand(-1, samples or size)

    def found(self, readings: Readings) -> Tensor:
        """Option of every word of readings, -1 if there is none, (B, K, T).

        Past the end of a text it is the successor of the last one.
        """
        source, offset = readings
        histories, rows = self.histories(source.shape[1]), self.lattice.num_rows
        many, border = 1 + len(self.topics.naming_alias), torch.arange(source.shape[2])
        inside = (border < self.lattice.length[:, None])[:, None]
        begins = ((source == WORD) | (offset == 0)) & inside
        of_name = self.topics.naming_topic[(source - 1).clamp(0, many - 2)]
        topic = self.topic.expand_as(histories)[..., None]
        after = _last(begins & (source != WORD), of_name, topic)
        texts = torch.arange(len(source))[:, None, None]
        row = self.lattice.row(texts, torch.cat([topic, after], -1)[..., :-1])
        key = (border * rows + row) * many + source.clamp(0, many - 1)
        begun = torch.searchsorted(self.key, key).clamp_max(len(self.key) - 1)
        now = _last(begins, self.then[begun], histories[..., None])
        same = (self.source[now] == source) & (self.start[now] == border - offset)
        exists = torch.where(begins, self.key[begun] == key, same | ~inside)
        return torch.where(begins, begun, now).masked_fill(~exists, -1)

    def readings(self, option: Tensor) -> Readings:
        """Readings of options (B, K, T), 0 past the end of a text."""
        border = torch.arange(option.shape[-1])
        inside = (border < self.lattice.length[:, None])[:, None]
        source = self.source[option].masked_fill(~inside, WORD)
        offset = border - self.start[option]
        return Readings(source, offset.masked_fill(source == WORD, 0))


def _last(mask: Tensor, value: Tensor, before: Tensor) -> Tensor:
    """Last value under the mask up to each position, (..., T), or ``before``."""
    index = (torch.arange(value.shape[-1]) + 1) * mask
    return torch.cat([before, value], -1).gather(-1, index.cummax(-1).values)


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with all that is independent of readings."""

    batch: TokenBatch
    value: Tensor
    """Hidden states that everything is predicted from, (B, T, inner)."""
    costs: Lattice
    """Lattice whose log-probabilities are on the model's device."""
    state: RelationState
    """State of the readings before the pieces."""
    carry: Any
    topics: Topics

    @cached_property
    def options(self) -> Options:
        agreeing = agrees(self).all(-1)
        return Options.of(self.costs, self.topics, self.state, agreeing)

    @cached_property
    def lattice(self) -> Lattice:
        """Lattice on the host, where it is summed and drawn from."""
        return self.costs.on_host()[0]

    def fetched(self, *others: Tensor) -> tuple[Tensor, ...]:
        """Copy tensors to the host together with the lattice, in one wait."""
        vars(self)["lattice"], *local = self.costs.on_host(*others)
        return tuple(local)

    @cached_property
    def summed(self) -> tuple[Tensor, RelationState]:
        """Log p of the pieces, (B,), and the state of all readings after them."""
        log_p, state = _sum(self)
        return sent(log_p, self.value.device), state


def agrees(encoded: Encoded) -> Tensor:
    """Whether unfinished names, if any, agree with the next words, (B, K, H)."""
    state, topics, (words, _) = encoded.state, encoded.topics, encoded.batch.on_host
    width = topics.alias_words.shape[1]
    step = torch.arange(width)
    name = topics.alias_words[topics.naming_alias[state.naming.clamp_min(0)]]
    name = F.pad(name, (0, width), value=PAD)
    name = name.gather(-1, state.offset[..., None] + step)
    words_ahead = words.masked_fill(~encoded.batch.inside_on_host, PAD)
    words_ahead = F.pad(words_ahead, (0, width), value=PAD)[:, None, None, :width]
    agreeing = ((name == words_ahead) | (name == PAD) | (words_ahead == PAD)).all(-1)
    return agreeing | (state.naming < 0)


def _sum(encoded: Encoded) -> tuple[Tensor, RelationState]:
    state, lattice, topics = encoded.state, encoded.lattice, encoded.topics
    if state.topic.shape[1] != 1:
        raise ValueError(f"{state.topic.shape[1]} histories cannot be summed into one")
    used = state.used & agrees(encoded)
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
    text, topic, naming, offset, share = (
        column[kept].detach() for column in (text, topic, naming, offset, share)
    )
    order, rank = ranked_within(text, share)
    size = (lattice.num_texts, 1, int(rank.max()) + 1 if len(rank) else 1)
    index = (text[order], torch.zeros_like(rank), rank)
    padded = (
        column.new_full(size, nothing).index_put(index, column[order])
        for column, nothing in (
            (topic, 0),
            (naming, -1),
            (offset, 0),
            (share, -torch.inf),
        )
    )
    return sunk(log_p), RelationState(encoded.carry, *padded)


def tempered(lattice: Lattice, temperature: float) -> Lattice:
    """Divide every log-probability of a lattice by a temperature."""
    return replace(
        lattice,
        word=(lattice.word / temperature).masked_fill(lattice.word < FLOOR / 2, FLOOR),
        score=lattice.score / temperature,
        log_prior=lattice.log_prior / temperature,
    )
