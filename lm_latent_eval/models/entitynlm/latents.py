r"""Entity chains and slots, and the distribution of one step, p(z_t | z_<t, x).

z_t = (entity, remaining) of token t: entity 0 is no mention, entities are numbered by
their first mention, and ``remaining`` counts the further tokens of the mention. Inside
a mention z_t is determined; elsewhere

.. math::
    p(z_t) = p(r_t \mid h) \, [\, p(e_t \mid h, \text{slots}) \,
             p(l_t \mid h, s_{e_t}) \,]^{r_t}

.. math::
    p(r) \propto e^{R_r h}, \qquad
    p(e) \propto e^{h^\top W_e s_e + \lambda (t - t_e)}, \qquad
    p(l) \propto e^{(W_l [h; s_e] + b)_l}

A slot s_e follows its entity: it begins as the direction of R_1, and every token of a
mention moves it towards the hidden state,

.. math::
    s_e \leftarrow \mathrm{normalize}(d s_e + (1 - d) u), \qquad
    d = \sigma(u^\top W_d s_e)

Slot 0 stays as it began and stands for the entity that has not been mentioned yet.

The generative model, every proposal and the prior are this one distribution over
different hidden states (``Steps``). The adapted proposal twists that of p by psi(g),
what p says of the token at hand if its context is g (``twist``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.models.recurrent import Carry

NOBODY = 0
"""Entity of a token outside mentions."""

SHORTEST = 1e-12
"""Lower bound of the length by which a slot is divided."""


class Chains(NamedTuple):
    """Latents of a batch: B texts, K chains each, T tokens."""

    entity: Tensor
    """Entities numbered from 1 by first mention, 0 outside mentions, (B, K, T)."""
    remaining: Tensor
    """Number of further tokens of the mention, 0 outside mentions, (B, K, T)."""


@dataclass(frozen=True)
class Steps:
    """Hidden states and parameters of chain steps, at P = B * T flat positions.

    A row is one decision: its position, and the slots of its chain. Rows of one
    position are adjacent and equally many.
    """

    mention: Tensor
    """Log p(r_t), (P, 2) nats."""
    query: Tensor
    """Vectors that score slots for p(e_t), (P, D)."""
    length: Tensor
    """Part of the length scores that no entity changes, (P, M)."""
    length_weight: Tensor
    """(M, D)."""
    distance: Tensor
    """lambda, ()."""
    update: Tensor
    """u, towards which the slot of the entity before the position moves, (P, D)."""
    update_query: Tensor
    """Vectors that score a slot for d, (P, D)."""
    time: Tensor
    """Token index of the decision from the beginning of the text, (P,)."""
    lag: int
    """Number of steps since u was read."""
    num_tokens: int
    twist: Callable[[Tensor, Tensor], Tensor] | None
    """Function log psi: positions (R,) and their contexts (R, N, D) -> nats (R, N)."""

    def scaled(self, factor: float) -> Steps:
        """Multiply the scores of decisions, and log psi, by a factor."""
        log_psi = self.twist
        return replace(
            self,
            mention=(self.mention * factor).log_softmax(-1),
            query=self.query * factor,
            length=self.length * factor,
            length_weight=self.length_weight * factor,
            distance=self.distance * factor,
            twist=log_psi
            and (lambda position, contexts: log_psi(position, contexts) * factor),
        )

    def twisted(
        self,
        position: Tensor,
        context: Tensor,
        slots: Tensor,
        last: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor]:
        r"""Unnormalised log q(r_t) and log q(e_t) under the twist.

        .. math::
            q(r_t = 0) \propto p(r_t = 0) \, \psi(g), \qquad
            q(r_t = 1) \propto p(r_t = 1) \sum_e p(e_t = e) \, \psi(s_e)

        The sum of both stands for p(x_t | z_<t, x_<t).

        Args:
            position: Positions of R decisions, or of each R / N of them, (N,).
            context: g, the context of a token outside mentions, (R, D).
            slots: Slots of each chain, (R, S, D).
            last: Time of each slot's last move, (R, S).
            count: Number of entities so far, (R,); slots beyond are excluded.

        Returns:
            Nats, (R, 2) and (R, S).
        """
        score = self._slot_score(position, slots, last, count)
        twisted = score + self._log_psi(position, slots)
        none = self.log_psi(position, context)
        mentioned = twisted.logsumexp(-1) - score.logsumexp(-1)
        mention = self.log_mention(position, len(slots))
        return mention + torch.stack([none, mentioned], -1), twisted

    def log_mention(self, position: Tensor, num_rows: int) -> Tensor:
        """Log p(r_t) without a twist, (N,) -> (R, 2) nats."""
        return _each(self.mention[position], num_rows)

    def log_slot(
        self, position: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        """Log p(e_t) over slots, 0 being a new entity; twisted by psi(s_e).

        Nats, (R, S); arguments are those of ``twisted``.
        """
        score = self._slot_score(position, slots, last, count)
        return (score + self._log_psi(position, slots)).log_softmax(-1)

    def _slot_score(
        self, position: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        score = (_by_position(slots, position) @ self.query[position][..., None]).view(
            last.shape
        )
        time = _each(self.time[position], len(last))[:, None]
        score = score + self.distance * (time - last)
        beyond = torch.arange(slots.shape[1], device=position.device) > count[:, None]
        return score.masked_fill(beyond, -torch.inf)

    def log_psi(self, position: Tensor, context: Tensor) -> Tensor:
        """Log psi of one context a decision, (N,), (R, D) -> (R,)."""
        return self._log_psi(position, context[:, None])[:, 0]

    def _log_psi(self, position: Tensor, contexts: Tensor) -> Tensor:
        """Log psi of contexts, (N,), (R, C, D) -> (R, C); 0 without a twist."""
        if self.twist is None:
            return contexts.new_zeros(())
        return self.twist(position, _by_position(contexts, position)).view(
            contexts.shape[:2]
        )

    def log_length(self, position: Tensor, slot: Tensor) -> Tensor:
        """Log p(l_t) given the entity's slot, (N,), (R, .., D) -> (R, .., M)."""
        text = _each(self.length[position], len(slot))
        text = text.view(len(text), *[1] * (slot.ndim - 2), text.shape[-1])
        return (text + F.linear(slot, self.length_weight)).log_softmax(-1)

    def moved(self, position: Tensor, slot: Tensor) -> Tensor:
        """Move the slots of entities that were mentioned before the place, (R, D)."""
        d = (self.update_query[position] * slot).sum(-1, keepdim=True).sigmoid()
        moved = d * slot + (1 - d) * self.update[position]
        return F.normalize(moved, dim=-1, eps=SHORTEST)


def _each(value: Tensor, num_rows: int) -> Tensor:
    """Repeat the values of N positions for the rows of each, (N, ..) -> (R, ..)."""
    return value.repeat_interleave(num_rows // max(1, len(value)), 0)


def _by_position(vectors: Tensor, position: Tensor) -> Tensor:
    """Group the vectors of all rows of a position, (R, S, D) -> (N, ., D)."""
    rows, slots, size = vectors.shape
    return vectors.reshape(len(position), rows * slots // max(1, len(position)), size)


# -- entity slots -------------------------------------------------------------------

ODD = 0x1E3779B97F4A7C15


def marked(mark: Tensor, value: Tensor) -> Tensor:
    """Hash a value into fingerprints modulo 2^64, with collisions of some 2^-63."""
    return mark * ODD + value


@dataclass(frozen=True)
class Memory:
    """Entity slots of chains, with any leading axes.

    B texts with K chains hold B * K * S * D numbers. S - 1 is the largest number of
    entities in a chain so far; the tensor grows with it.
    """

    slots: Tensor
    """Slot vectors, (..., S, D); slot 0 and slots of later entities have the initial
    value."""
    last: Tensor
    """Time of each slot's last move, in tokens from the beginning, (..., S)."""

    @classmethod
    def begin(cls, first: Tensor, batch_size: int) -> Memory:
        """B texts with one chain each; every slot begins as ``first``, (D,)."""
        slots = first.expand(batch_size, 1, 1, len(first))
        return cls(slots, slots.new_zeros(slots.shape[:3], dtype=torch.long))

    def __getitem__(self, index: Tensor | tuple[Tensor, ...]) -> Memory:
        return Memory(self.slots[index], self.last[index])

    def flat(self, num_chains: int) -> Memory:
        """Copy K chains of B texts, or one chain K times, to leading axis B * K."""
        lead = (len(self.slots), num_chains)
        return Memory(
            self.slots.expand(*lead, *self.slots.shape[2:]).flatten(0, 1).clone(),
            self.last.expand(*lead, -1).flatten(0, 1).clone(),
        )

    def widened(self, num_slots: int) -> Memory:
        more = num_slots - self.slots.shape[-2]
        if more <= 0:
            return self
        shape = (*self.slots.shape[:-2], more, -1)
        return Memory(
            torch.cat([self.slots, self.slots[..., :1, :].expand(shape)], -2),
            torch.cat([self.last, self.last[..., :1].expand(shape[:-1])], -1),
        )

    def write(self, row: Tensor, entity: Tensor, slot: Tensor, time: Tensor) -> None:
        """Move one slot of given rows of a flat copy *in place*."""
        self.slots[row, entity] = slot
        self.last[row, entity] = time


@dataclass(frozen=True)
class EntityState:
    """State of B texts with K chains each.

    The slot of the last token's entity has not moved yet: its target may depend on
    reading that token, which p does only when it goes on. Decisions are on the host,
    vectors on the model's device.
    """

    carry: Carry
    memory: Memory
    context: Tensor
    """Slot that words are predicted from until the next mention, (B, K, D)."""
    position: Tensor
    """Number of tokens so far, on the host, (B,)."""
    entity: Tensor
    """Entity of the last token, on the host, (B, K)."""
    remaining: Tensor
    """Number of further tokens of its mention, on the host, (B, K)."""
    count: Tensor
    """Number of entities mentioned so far, on the host, (B, K)."""
    marks: Tensor
    """Fingerprints of the moves of the context and of each slot, on the host, (B, K, 1
    + S): within a text, equal ones mean equal vectors."""

    @classmethod
    def begin(cls, first: Tensor, carry: Carry, batch_size: int) -> EntityState:
        """Beginning of B texts; every slot begins as ``first``, (D,)."""
        memory = Memory.begin(first, batch_size)
        context = first.new_zeros(batch_size, 1, len(first))
        nobody = torch.zeros(batch_size, 1, dtype=torch.long)
        marks = torch.tensor([-1, 0]).expand(batch_size, 1, 2)  # moves are later
        return cls(carry, memory, context, nobody[:, 0], nobody, nobody, nobody, marks)

    @property
    def num_chains(self) -> int:
        return self.entity.shape[1]

    def select(self, index: Tensor) -> EntityState:
        carry, position = self.carry.select(index), self.position[index]
        return replace(self._picked(index), carry=carry, position=position)

    def resample(self, index: Tensor) -> EntityState:
        return self._picked(torch.arange(len(index))[:, None], index)

    def _picked(self, *index: Tensor) -> EntityState:
        """Index the leading axes of the fields that differ between chains."""
        index_sent = tuple(sent(i, self.context.device) for i in index)
        return replace(
            self,
            memory=self.memory[index_sent],
            context=self.context[index_sent],
            entity=self.entity[index],
            remaining=self.remaining[index],
            count=self.count[index],
            marks=self.marks[index],
        )


@dataclass(frozen=True)
class Versions:
    """Initial contexts and slot vectors, then slots after each of their moves."""

    vectors: Tensor
    """Vectors, (N, D)."""
    time: Tensor
    """Time of each move, in tokens from the beginning, (N,)."""
    mark: Tensor
    """Fingerprints, on the host, (N,): within a text, equal ones mean equal vectors."""
