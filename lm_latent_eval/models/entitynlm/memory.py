"""Entity slots of many chains, and where the chains stand after a piece of text.

Memory is what it costs: B texts with K chains hold B * K * S * D numbers, where S - 1
is the largest number of entities that one of the chains has mentioned so far. The
tensor grows as entities come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.models.recurrent import Carry


@dataclass(frozen=True)
class Memory:
    """Entity slots of chains, with any leading axes."""

    slots: Tensor
    """(..., S, D); slot 0 and slots of entities to come are as all begin."""
    last: Tensor
    """When each slot moved last, in tokens from the beginning, (..., S)."""
    count: Tensor
    """Entities mentioned so far, (...)."""

    @classmethod
    def begin(cls, first: Tensor, batch_size: int) -> Memory:
        """Return B texts with one chain each that has mentioned nobody.

        Args:
            first: How every slot begins, (D,).
            batch_size: B.
        """
        nothing = torch.zeros(batch_size, 1, dtype=torch.long, device=first.device)
        slots = first.expand(batch_size, 1, 1, len(first))
        return cls(slots, nothing[..., None], nothing)

    def __getitem__(self, index: Tensor | tuple[Tensor, ...]) -> Memory:
        """Index the leading axes."""
        return Memory(self.slots[index], self.last[index], self.count[index])

    def flat(self, num_chains: int) -> Memory:
        """Copy K chains of B texts, or one chain K times, to leading axis B * K."""
        lead = (len(self.count), num_chains)
        return Memory(
            self.slots.expand(*lead, *self.slots.shape[2:]).flatten(0, 1).clone(),
            self.last.expand(*lead, -1).flatten(0, 1).clone(),
            self.count.expand(lead).flatten().clone(),
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
            self.count,
        )

    def write(self, row: Tensor, entity: Tensor, slot: Tensor, time: Tensor) -> None:
        """Move one slot of some rows of a flat copy, which has it, *in place*."""
        self.slots[row, entity] = slot
        self.last[row, entity] = time
        self.count[row] = torch.maximum(self.count[row], entity)


@dataclass(frozen=True)
class EntityState:
    """Where B texts with K chains each stand.

    The slot of the last token's entity has not moved yet: what it moves towards may
    depend on reading that token, which p does only when it goes on.
    """

    carry: Carry
    position: Tensor
    """Tokens so far, (B,)."""
    memory: Memory
    """Leading axes (B, K)."""
    entity: Tensor
    """Of the last token, (B, K)."""
    remaining: Tensor
    """Tokens that are left of its mention, (B, K)."""
    context: Tensor
    """The slot that words are chosen by until the next mention, (B, K, D)."""

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
        nobody = memory.count
        return cls(carry, nobody[:, 0], memory, nobody, nobody, context)

    @property
    def num_chains(self) -> int:
        """K."""
        return self.entity.shape[1]

    def select(self, index: Tensor) -> EntityState:
        """Pick texts."""
        return EntityState(
            self.carry.select(index),
            self.position[index],
            self.memory[index],
            self.entity[index],
            self.remaining[index],
            self.context[index],
        )

    def resample(self, index: Tensor) -> EntityState:
        """Pick chains of each text, (B, K')."""
        texts = torch.arange(len(index), device=index.device)[:, None]
        return replace(
            self,
            memory=self.memory[texts, index],
            entity=self.entity[texts, index],
            remaining=self.remaining[texts, index],
            context=self.context[texts, index],
        )
