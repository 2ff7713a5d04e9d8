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
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.recurrent import Carry

NOBODY = 0
"""The entity of a token that mentions none."""

SHORTEST = 1e-12
"""A slot that was shorter is divided by this instead of by its length."""


class Chains(NamedTuple):
    """Latents of a batch: B texts, K chains each, T tokens."""

    entity: Tensor
    """Entities by first mention from 1, 0 where nothing is mentioned, (B, K, T)."""
    remaining: Tensor
    """Tokens of the mention after this one, 0 where there is none, (B, K, T)."""


@dataclass(frozen=True)
class Steps:
    """Hidden states and parameters of chain steps, at P = B * T flat places.

    A row is one decision: its place, and the slots of the chain that it belongs to.
    Rows of one place lie together, as many of each, so that places are found once.
    """

    mention: Tensor
    """log p(r_t), (P, 2) nats."""
    query: Tensor
    """Vectors that score slots for p(e_t), (P, D)."""
    length: Tensor
    """The part of the length scores that no entity changes, (P, M)."""
    length_weight: Tensor
    """(M, D)."""
    distance: Tensor
    """lambda, ()."""
    update: Tensor
    """u, towards which the entity of the token *before* the place moves, (P, D)."""
    update_query: Tensor
    """Vectors that score a slot for d, (P, D)."""
    time: Tensor
    """When the decision falls, in tokens from the beginning, (P,)."""
    lag: int
    """Steps since u was read."""
    num_tokens: int
    """T."""
    twist: Callable[[Tensor, Tensor], Tensor] | None
    """log psi: places (R,) and their contexts (R, N, D) -> nats (R, N)."""

    def scaled(self, factor: float) -> Steps:
        """Multiply the scores of decisions, and log psi, by a number."""
        log_psi = self.twist
        return replace(
            self,
            mention=(self.mention * factor).log_softmax(-1),
            query=self.query * factor,
            length=self.length * factor,
            length_weight=self.length_weight * factor,
            distance=self.distance * factor,
            twist=log_psi
            and (lambda place, contexts: log_psi(place, contexts) * factor),
        )

    def twisted(
        self, place: Tensor, context: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""Return the unnormalised log q(r_t) and log q(e_t) under the twist.

        .. math::
            q(r_t = 0) \propto p(r_t = 0) \, \psi(g), \qquad
            q(r_t = 1) \propto p(r_t = 1) \sum_e p(e_t = e) \, \psi(s_e)

        The sum of both stands for p(x_t | z_<t, x_<t).

        Args:
            place: Of R decisions or of each R / N of them, (N,).
            context: g, by which a token outside mentions is worded, (R, D).
            slots: Their slots, (R, S, D).
            last: When each slot moved last, (R, S).
            count: Entities so far, (R,); slots beyond are excluded.

        Returns:
            Nats, (R, 2) and (R, S).
        """
        score = self._slot_score(place, slots, last, count)
        twisted = score + self._log_psi(place, slots)
        none = self.log_psi(place, context)
        some = twisted.logsumexp(-1) - score.logsumexp(-1)
        mention = self.log_mention(place, len(slots))
        return mention + torch.stack([none, some], -1), twisted

    def log_mention(self, place: Tensor, num_rows: int) -> Tensor:
        """Return log p(r_t) without a twist, (N,) -> (R, 2) nats."""
        return _each(self.mention[place], num_rows)

    def log_slot(
        self, place: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        """Return log p(e_t) over slots, 0 being a new entity; twisted by psi(s_e).

        Nats, (R, S); arguments are those of ``twisted``.
        """
        score = self._slot_score(place, slots, last, count)
        return (score + self._log_psi(place, slots)).log_softmax(-1)

    def _slot_score(
        self, place: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        score = (_by_place(slots, place) @ self.query[place][..., None]).view(
            last.shape
        )
        time = _each(self.time[place], len(last))[:, None]
        score = score + self.distance * (time - last)
        beyond = torch.arange(slots.shape[1], device=place.device) > count[:, None]
        return score.masked_fill(beyond, -torch.inf)

    def log_psi(self, place: Tensor, context: Tensor) -> Tensor:
        """Return log psi of one context a decision, (N,), (R, D) -> (R,)."""
        return self._log_psi(place, context[:, None])[:, 0]

    def _log_psi(self, place: Tensor, contexts: Tensor) -> Tensor:
        """Return log psi of contexts, (N,), (R, C, D) -> (R, C); 0 without a twist."""
        if self.twist is None:
            return contexts.new_zeros(())
        return self.twist(place, _by_place(contexts, place)).view(contexts.shape[:2])

    def log_length(self, place: Tensor, slot: Tensor) -> Tensor:
        """Return log p(l_t) given the entity's slot, (N,), (R, .., D) -> (R, .., M)."""
        text = _each(self.length[place], len(slot))
        text = text.view(len(text), *[1] * (slot.ndim - 2), text.shape[-1])
        return (text + F.linear(slot, self.length_weight)).log_softmax(-1)

    def moved(self, place: Tensor, slot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Move the slots of entities that were mentioned before the place.

        Returns:
            The new slots, (R, D), and what they are sums of, (R, 1) each:
            :math:`\text{kept} \cdot s_e + \text{added} \cdot u`.
        """
        d = (self.update_query[place] * slot).sum(-1, keepdim=True).sigmoid()
        moved = d * slot + (1 - d) * self.update[place]
        norm = moved.norm(dim=-1, keepdim=True).clamp_min(SHORTEST)
        return moved / norm, d / norm, (1 - d) / norm


def _each(value: Tensor, num_rows: int) -> Tensor:
    """Repeat the values of N places for the rows of each, (N, ..) -> (R, ..)."""
    return value.repeat_interleave(num_rows // max(1, len(value)), 0)


def _by_place(vectors: Tensor, place: Tensor) -> Tensor:
    """Put the vectors of all rows of a place side by side, (R, S, D) -> (N, ., D)."""
    rows, some, size = vectors.shape
    return vectors.reshape(len(place), rows * some // max(1, len(place)), size)


# -- entity slots -------------------------------------------------------------------

ODD = 0x1E3779B97F4A7C15


def marked(mark: Tensor, number: Tensor) -> Tensor:
    """Add a number to fingerprints, modulo 2^64.

    Unequal ones stay unequal, but for an accident of probability 2^-63 or so.
    """
    return mark * ODD + number


@dataclass(frozen=True)
class Memory:
    """Entity slots of chains, with any leading axes.

    Memory is what it costs: B texts with K chains hold B * K * S * D numbers, where
    S - 1 is the largest number of entities that one of the chains has mentioned so far.
    The tensor grows as entities come.
    """

    slots: Tensor
    """(..., S, D); slot 0 and slots of entities to come are as all begin."""
    last: Tensor
    """When each slot moved last, in tokens from the beginning, (..., S)."""

    @classmethod
    def begin(cls, first: Tensor, batch_size: int) -> Memory:
        """Return B texts with one chain each; every slot begins as ``first``, (D,)."""
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
        """Return at least so many slots."""
        more = num_slots - self.slots.shape[-2]
        if more <= 0:
            return self
        shape = (*self.slots.shape[:-2], more, -1)
        return Memory(
            torch.cat([self.slots, self.slots[..., :1, :].expand(shape)], -2),
            torch.cat([self.last, self.last[..., :1].expand(shape[:-1])], -1),
        )

    def write(self, row: Tensor, entity: Tensor, slot: Tensor, time: Tensor) -> None:
        """Move one slot of some rows of a flat copy, which has it, *in place*."""
        self.slots[row, entity] = slot
        self.last[row, entity] = time


@dataclass(frozen=True)
class EntityState:
    """State of B texts with K chains each.

    The slot of the last token's entity has not moved yet: what it moves towards may
    depend on reading that token, which p does only when it goes on. What was decided
    is on the host, what was computed where the model is.
    """

    carry: Carry
    memory: Memory
    """Leading axes (B, K)."""
    context: Tensor
    """The slot that words are chosen by until the next mention, (B, K, D)."""
    position: Tensor
    """Tokens so far, on the host, (B,)."""
    entity: Tensor
    """Of the last token, on the host, (B, K)."""
    remaining: Tensor
    """Tokens that are left of its mention, on the host, (B, K)."""
    count: Tensor
    """Entities mentioned so far, on the host, (B, K)."""
    marks: Tensor
    """Fingerprints of when the context and each slot moved, on the host, (B, K, 1 + S):
    of a text, those that have equal ones are equal vectors."""

    @classmethod
    def begin(cls, first: Tensor, carry: Carry, batch_size: int) -> EntityState:
        """Return the beginning of B texts; every slot begins as ``first``, (D,)."""
        memory = Memory.begin(first, batch_size)
        context = first.new_zeros(batch_size, 1, len(first))
        nobody = torch.zeros(batch_size, 1, dtype=torch.long)
        marks = torch.tensor([-1, 0]).expand(batch_size, 1, 2)  # moves are later
        return cls(carry, memory, context, nobody[:, 0], nobody, nobody, nobody, marks)

    @property
    def num_chains(self) -> int:
        """K."""
        return self.entity.shape[1]

    def select(self, index: Tensor) -> EntityState:
        carry, position = self.carry.select(index), self.position[index]
        return replace(self._picked(index), carry=carry, position=position)

    def resample(self, index: Tensor) -> EntityState:
        """Pick chains of each text, (B, K')."""
        return self._picked(torch.arange(len(index))[:, None], index)

    def _picked(self, *index: Tensor) -> EntityState:
        """Index the leading axes of the parts that differ between chains."""
        there = tuple(sent(i, self.context.device) for i in index)
        return replace(
            self,
            memory=self.memory[there],
            context=self.context[there],
            entity=self.entity[index],
            remaining=self.remaining[index],
            count=self.count[index],
            marks=self.marks[index],
        )


class Terms(NamedTuple):
    """Weighted sums, one after another."""

    start: Tensor
    """Where the terms of each sum begin, on the host, (N,)."""
    of: Tensor
    """Summands, see ``Versions.term``, on the host, (M,)."""
    weight: Tensor
    """(M,)."""


@dataclass(frozen=True)
class Versions:
    r"""Initial slot vectors, then slots after each of their moves.

    A slot is a sum of how it began and of what it moved towards. After its moves
    1 .. m,

    .. math::
        s = \Bigl(\prod_{i \le m} k_i\Bigr) s_0
            + \sum_{j \le m} a_j \Bigl(\prod_{j < i \le m} k_i\Bigr) u_j

    if move i kept :math:`k_i` of the slot and added :math:`a_i` of :math:`u_i`.

    Moves of one slot lie together, in their order.
    """

    begin: Tensor
    """(N, D)."""
    moved: Tensor
    """(M, D)."""
    time: Tensor
    """When each came to be, in tokens from the beginning, (N + M,)."""
    mark: Tensor
    """Fingerprints: those of a text that have equal ones are equal, on the host,
    (N + M,)."""
    origin: Tensor
    """Which of ``begin`` the slot of each move began as, on the host, (M,)."""
    rank: Tensor
    """How many moves the slot had before, on the host, (M,)."""
    place: Tensor
    """Which of ``update`` each move went towards, on the host, (M,)."""
    log_kept: Tensor
    """Log of what is left of the beginning, (M,)."""
    log_added: Tensor
    """Log of how much each move added, (M,)."""
    update: Tensor
    """u, (P, D)."""

    @cached_property
    def vectors(self) -> Tensor:
        """(N + M, D)."""
        return torch.cat([self.begin, self.moved])

    def term(self, index: Tensor) -> Tensor:
        """Return vectors that versions are sums of: beginnings, then updates."""
        num_begin, device = len(self.begin), self.begin.device
        began = sent((index < num_begin)[:, None], device)
        first = self.begin[sent(index.clamp_max(num_begin - 1), device)]
        then = self.update[sent((index - num_begin).clamp_min(0), device)]
        return torch.where(began, first, then)

    def terms(self, index: Tensor) -> Terms:
        """Write versions as sums, (N,) on the host: how each began, then its moves."""
        num_begin, num_moves = len(self.begin), len(self.moved)
        moved = index >= num_begin
        move = torch.where(moved, index - num_begin, num_moves)
        rank, origin, place = (
            F.pad(x, (0, 1)) for x in (self.rank, self.origin, self.place)
        )
        first = torch.where(moved, move - rank[move], num_moves)
        step, which = expand_ranges(first - 1, torch.where(moved, move + 1, num_moves))
        begins = step < first[which]
        # What has no moves, and a beginning, which was not added, have the last number.
        step = step.masked_fill(begins, num_moves)
        began = torch.where(moved, origin[move], index)[which]
        of = torch.where(begins, began, num_begin + place[step])
        kept = F.pad(self.log_kept, (0, 1))
        share = F.pad(self.log_added - self.log_kept, (0, 1))
        step, move = (sent(x, share.device) for x in (step, move[which]))
        start = torch.searchsorted(which, torch.arange(len(index)))
        return Terms(start, of, (kept[move] + share[step]).exp())
