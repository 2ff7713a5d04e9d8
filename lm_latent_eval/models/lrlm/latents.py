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
"""The source of a word that belongs to no name."""


class Readings(NamedTuple):
    """K readings of B texts: where every word comes from."""

    source: Tensor
    """``WORD``, or 1 + the naming that the word belongs to, (B, K, T)."""
    offset: Tensor
    """Which word of that name it is, (B, K, T)."""


@dataclass(frozen=True)
class RelationState:
    """State of B texts with K latents each.

    A latent is H readings that have been summed, or one. All but the recurrent state is
    on the host.
    """

    carry: Any
    """The recurrent state; None before the first word."""
    topic: Tensor
    """0 where it is not known yet, (B, K, H)."""
    naming: Tensor
    """The name that is not at its end, -1 for none, (B, K, H)."""
    offset: Tensor
    """Which word of it comes next, (B, K, H)."""
    log_share: Tensor
    """Log of each one's share of its latent, (B, K, H) float64; ``-inf``: unused."""

    @classmethod
    def begin(cls, topic: Tensor) -> RelationState:
        """Return the state of texts of which nothing has been read, (B,)."""
        topic = topic[:, None, None]
        nothing = torch.zeros_like(topic)
        return cls(None, topic, nothing - 1, nothing, widened(nothing))

    def select(self, index: Tensor) -> RelationState:
        return self._picked(index, self.carry and self.carry.select(index))

    def resample(self, index: Tensor) -> RelationState:
        """Pick latents of each text, (B, K')."""
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
        """Which histories are no padding, (B, K, H) bool."""
        return self.log_share > -torch.inf

    def expanded(self, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return topic, naming and offset of K single readings, (B, K) each."""
        if self.topic.shape[-1] != 1:
            raise ValueError("readings that have been summed cannot go on one by one")
        if self.topic.shape[1] not in (1, samples):
            raise ValueError(
                f"{self.topic.shape[1]} histories cannot continue in {samples} readings"
            )
        columns = (self.topic, self.naming, self.offset)
        topic, naming, offset = (c[..., 0].expand(-1, samples) for c in columns)
        return topic, naming, offset


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with everything that no reading changes."""

    batch: TokenBatch
    value: Tensor
    """Hidden states that everything is predicted from, (B, T, inner)."""
    costs: Lattice
    """Log-probabilities of words and names, on the model's device."""
    state: RelationState
    """State of the readings before the pieces."""
    carry: Any
    topics: Topics

    @cached_property
    def lattice(self) -> Lattice:
        """The same on the host, where it is summed and drawn from."""
        return self.costs.on_host()

    @cached_property
    def summed(self) -> tuple[Tensor, RelationState]:
        """Log p of the pieces, (B,), and the state of all readings after them."""
        log_p, state = _sum(self)
        return sent(log_p, self.value.device), state

    @property
    def words(self) -> tuple[Tensor, Tensor]:
        """The words, and which places have one, on the host, (B, T) each."""
        targets, length = self.batch.on_host
        return targets, torch.arange(targets.shape[1]) < length[:, None]


def goes_on(encoded: Encoded) -> Tensor:
    """Whether open names agree with the words that follow, (B, K, H); true if none."""
    state, topics, (words, inside) = encoded.state, encoded.topics, encoded.words
    width = topics.alias_words.shape[1]
    step = torch.arange(width)
    name = topics.alias_words[topics.naming_alias[state.naming.clamp_min(0)]]
    name = F.pad(name, (0, width), value=PAD)
    name = name.gather(-1, state.offset[..., None] + step)
    said = words.masked_fill(~inside, PAD)
    said = F.pad(said, (0, width), value=PAD)[:, None, None, :width]
    agrees = ((name == said) | (name == PAD) | (said == PAD)).all(-1)
    return agrees | (state.naming < 0)


def _sum(encoded: Encoded) -> tuple[Tensor, RelationState]:
    """Return log p of pieces, (B,), and the state of all readings after them."""
    state, lattice, topics = encoded.state, encoded.lattice, encoded.topics
    if state.topic.shape[1] != 1:
        raise ValueError(f"{state.topic.shape[1]} histories cannot be summed into one")
    used = state.used & goes_on(encoded)
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
    """Stack the histories of each text, padded."""
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


def tempered(lattice: Lattice, temperature: float) -> Lattice:
    """Divide every log-probability of a lattice by a temperature."""
    return replace(
        lattice,
        word=(lattice.word / temperature).clamp_min(FLOOR),
        score=lattice.score / temperature,
        log_prior=lattice.log_prior / temperature,
    )
