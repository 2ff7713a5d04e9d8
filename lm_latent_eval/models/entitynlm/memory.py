"""Entity slots of many chains, and their state after a piece of text.

Memory is what it costs: B texts with K chains hold B * K * S * D numbers, where S - 1
is the largest number of entities that one of the chains has mentioned so far. The
tensor grows as entities come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.recurrent import Carry

ODD = 0x1E3779B97F4A7C15


def marked(mark: Tensor, number: Tensor) -> Tensor:
    """Add a number to fingerprints, modulo 2^64.

    Unequal ones stay unequal, but for an accident of probability 2^-63 or so.
    """
    return mark * ODD + number


@dataclass(frozen=True)
class Memory:
    """Entity slots of chains, with any leading axes."""

    slots: Tensor
    """(..., S, D); slot 0 and slots of entities to come are as all begin."""
    last: Tensor
    """When each slot moved last, in tokens from the beginning, (..., S)."""

    @classmethod
    def begin(cls, first: Tensor, batch_size: int) -> Memory:
        """Return B texts with one chain each that has mentioned nobody.

        Args:
            first: How every slot begins, (D,).
            batch_size: B.
        """
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
    """Where B texts with K chains each stand.

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
        """Return the beginning of B texts.

        Args:
            first: How every slot begins, (D,).
            carry: Where the recurrent layers begin.
            batch_size: B.
        """
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
        """Index the leading axes of what chains differ in."""
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
