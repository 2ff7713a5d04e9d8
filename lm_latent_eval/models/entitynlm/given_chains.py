"""Scoring of given chains: log-probability, contexts of words, final state.

What a slot becomes depends on the mentions of its own entity alone. So entities of all
chains are followed side by side, mention token by mention token, every version of a
slot is kept, and then all decisions of all chains are scored at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.ragged import in_parts
from lm_latent_eval.models.entitynlm.latents import (
    NOBODY,
    Chains,
    EntityState,
    Memory,
    Steps,
    Versions,
    marked,
)
from lm_latent_eval.models.recurrent import Carry
from lm_latent_eval.text.batch import TokenBatch


class Factors(NamedTuple):
    """Log p(z_t | z_<t) in nats, each (B, K, T); 0 where a factor does not apply."""

    mention: Tensor
    slot: Tensor
    length: Tensor


class GivenChains:
    """B * K given chains, as R rows of T tokens.

    Moves are determined on the host before anything is scored, so chains on a device
    are waited for once.
    """

    def __init__(
        self, steps: Steps, state: EntityState, chains: Chains, length: Tensor
    ) -> None:
        """Classify the tokens of each chain: inside, beginning or between mentions.

        Args:
            steps: Steps of the text.
            state: State before the text, of K chains or 1.
            chains: K chains a text.
            length: Tokens of each text, on the host, (B,).
        """
        self.shape = chains.entity.shape
        self.steps, self.state, self.length = steps, state, length
        batch, samples, num_tokens = self.shape
        entity, remaining = fetched(*chains)
        before = state.entity, state.remaining, state.count
        inside = torch.arange(num_tokens) < length[:, None]
        inside = inside[:, None].expand(self.shape).flatten(0, 1)
        self.entity, self.remaining = entity.flatten(0, 1), remaining.flatten(0, 1)
        self.started = [x.expand(batch, samples).reshape(-1, 1) for x in before]
        """Entity, further tokens of its mention and entities before the text, (R, 1)"""
        last_entity, left, count = self.started
        self.before = torch.cat([last_entity, self.entity], 1)[:, :-1]
        self.left = torch.cat([left, self.remaining], 1)[:, :-1]
        self.count = torch.maximum(self.before.cummax(1).values, count)
        self.slot = self.entity.masked_fill(self.entity > self.count, 0)
        """Slots of mentions; a later entity has the slot of a new one."""
        self.inside = inside
        self.free = (self.left == 0) & inside

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.steps.query.device)

    # -- every version of every slot ------------------------------------------------

    @cached_property
    def num_slots(self) -> int:
        last_entity = int(self.count.max()) if self.count.numel() else 0
        return max(last_entity + 1, self.state.memory.slots.shape[2])

    @cached_property
    def _moves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, times and (row, entity) groups of all moves, sorted by group."""
        row, t = ((self.before != NOBODY) & self.inside).nonzero(as_tuple=True)
        group = row * self.num_slots + self.before[row, t]
        order = group.argsort(stable=True)
        return row[order], t[order], group[order]

    @cached_property
    def versions(self) -> Versions:
        """Contexts before the text, one a row, slots before it, then all moves."""
        row, t, group = self._moves
        lead = self.shape[:2]
        slots, context = self.state.memory.slots, self.state.context
        begin = torch.cat(
            [
                context.expand(*lead, -1).flatten(0, 1),
                slots.expand(*lead, *slots.shape[2:]).flatten(0, 2),
            ]
        )
        mark = self.state.marks.expand(*lead, -1)
        mark = torch.cat([mark[..., 0].flatten(), mark[..., 1:].flatten()])
        rank = torch.arange(len(row)) - torch.searchsorted(group, group)
        place, origin = self._position(row, t), self._begin(row, group % self.num_slots)
        # All first moves, all second ones, ...: each depends only on the one before.
        order, counts = rank.argsort(stable=True), rank.bincount().tolist()
        within = torch.cat([torch.arange(count) for count in counts] or [rank])
        source = torch.where(rank == 0, origin, within[order.argsort()].roll(1))
        source = source[order]
        time = (self.state.position[row // lead[1]] + t)[order]
        vectors, marks = [begin], [mark]
        columns = self._sent(place[order]), self._sent(source), source, time
        for at, index, from_, then in zip(
            *(column.split(counts) for column in columns), strict=True
        ):
            vectors.append(self.steps.moved(at, vectors[-1][index]))
            marks.append(marked(marks[-1][from_], then))
        back = order.argsort()
        last = self.state.memory.last.expand(*lead, -1).flatten()
        moved_at = self.steps.time[self._sent(place)] - self.steps.lag
        return Versions(
            torch.cat([begin, torch.cat([begin[:0], *vectors[1:]])[self._sent(back)]]),
            torch.cat([last.new_zeros(len(self.entity)), last, moved_at]),
            torch.cat([mark, torch.cat([mark[:0], *marks[1:]])[back]]),
        )

    def _find(self, row: Tensor, entity: Tensor, t: Tensor) -> Tensor:
        """Indices into ``versions`` of slots when token t is decided."""
        moved_row, moved_t, moved_group = self._moves
        num_tokens = self.shape[2]
        group = row * self.num_slots + entity
        begin = self._begin(row, entity)
        if not len(moved_row):
            return begin.expand(torch.broadcast_shapes(begin.shape, t.shape))
        key = moved_group * num_tokens + moved_t
        latest = torch.searchsorted(key, group * num_tokens + t, right=True) - 1
        move = latest.clamp_min(0)
        has = (latest >= 0) & (moved_group[move] == group)
        num_begin = len(self.versions.vectors) - len(moved_row)
        return torch.where(has, num_begin + move, begin)

    def _begin(self, row: Tensor, entity: Tensor) -> Tensor:
        """Indices of slots before the text; later entities have slot 0."""
        width = self.state.memory.slots.shape[2]
        num_rows = self.shape[0] * self.shape[1]
        return num_rows + row * width + entity.masked_fill(entity >= width, 0)

    def _position(self, row: Tensor, t: Tensor) -> Tensor:
        return row // self.shape[1] * self.shape[2] + t

    # -- what follows from them -----------------------------------------------------

    def factors(self) -> Factors:
        """Score every decision; an impossible step has ``-inf``."""
        mentions = self.entity != NOBODY
        row, t = self.free.nonzero(as_tuple=True)
        width = self.num_slots * self.steps.query.shape[1]
        parts = [
            self._log_mention(r, s).gather(1, self._sent(mentions[r, s, None].long()))
            for r, s in in_parts(width, row, t)
        ]
        index, log_mention = (self._sent(row), self._sent(t)), torch.cat(parts)[:, 0]
        zeros = log_mention.new_zeros(self.entity.shape)
        mention = zeros.index_put(index, log_mention)

        row, t = (self.free & mentions).nonzero(as_tuple=True)
        begun = [self._begin_mention(r, s) for r, s in in_parts(width, row, t)]
        log_slot, log_length = (torch.cat(part) for part in zip(*begun, strict=True))
        index = self._sent(row), self._sent(t)
        slot = zeros.index_put(index, log_slot.to(zeros))
        length = zeros.index_put(index, log_length.to(zeros))
        mention = mention.masked_fill(self._sent(self._impossible()), -torch.inf)
        return Factors(*(x.view(self.shape) for x in (mention, slot, length)))

    def _log_mention(self, row: Tensor, t: Tensor) -> Tensor:
        """Log p(r_t) of tokens between mentions, (N, 2)."""
        position = self._sent(self._position(row, t))
        if self.steps.twist is None:
            return self.steps.mention[position]
        before = torch.where(t > 0, self._which[row, t - 1], row)
        context = self.versions.vectors[self._sent(before)]
        mention, _ = self.steps.twisted(position, context, *self._memory(row, t))
        return mention.log_softmax(-1)

    def _memory(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Every slot when token t is decided, its last move, and the entity count."""
        every = torch.arange(self.num_slots)
        index = self._sent(self._find(row[:, None], every[None], t[:, None]))
        count = self._sent(self.count[row, t])
        return self.versions.vectors[index], self.versions.time[index], count

    def _begin_mention(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(e_t) and log p(l_t) at the start of mentions, (N,) each."""
        position, slot = self._sent(self._position(row, t)), self.slot[row, t]
        log_slot = self.steps.log_slot(position, *self._memory(row, t))
        vector = self.versions.vectors[self._sent(self._find(row, slot, t))]
        log_length = self.steps.log_length(position, vector)
        longest = log_length.shape[1] - 1
        remaining = self.remaining[row, t].clamp(0, longest)
        return (
            log_slot.gather(1, self._sent(slot[:, None]))[:, 0],
            log_length.gather(1, self._sent(remaining[:, None]))[:, 0],
        )

    def _impossible(self) -> Tensor:
        longest = self.steps.length.shape[1] - 1
        entity, remaining = self.entity, self.remaining
        begins = (
            (entity > self.count + 1)
            | (remaining < 0)
            | (remaining > longest)
            | ((entity == NOBODY) & (remaining > 0))
        )
        goes_on = (entity != self.before) | (remaining != self.left - 1)
        return torch.where(self.free, begins, goes_on) & self.inside

    def log_prob(self) -> Tensor:
        """Log p(z_t | z_<t) in nats, (B, K, T) float64; 0 past the end."""
        mention, slot, length = self.factors()
        return widened(mention) + slot + length

    def contexts(self) -> tuple[Versions, Tensor]:
        """Slots that words are predicted from.

        Returns:
            Versions, and the index of each token's version, -1 past the end, (B, K, T),
            on the host.
        """
        return self.versions, self._which.view(self.shape)

    @cached_property
    def _which(self) -> Tensor:
        rows, t = torch.arange(len(self.entity))[:, None], torch.arange(self.shape[2])
        latest = torch.where(self.entity != NOBODY, t, -1).cummax(1).values
        then = latest.clamp_min(0)
        index = self._find(rows, self.slot.gather(1, then), then)
        return torch.where(latest >= 0, index, rows).masked_fill(~self.inside, -1)

    def state_after(self, carry: Carry) -> EntityState:
        lead = self.shape[:2]
        end = self.length.repeat_interleave(lead[1])[:, None]
        row = torch.arange(len(end))[:, None]

        def at_end(before: Tensor, values: Tensor) -> Tensor:
            return torch.cat([before, values], 1).gather(1, end).view(lead)

        slots = self._find(row, torch.arange(self.num_slots), end - 1).view(*lead, -1)
        context = at_end(row, self._which)
        versions, (last_entity, left, count) = self.versions, self.started
        index = self._sent(slots)
        return EntityState(
            carry,
            Memory(versions.vectors[index], versions.time[index]),
            versions.vectors[self._sent(context)],
            self.state.position + self.length,
            at_end(last_entity, self.entity),
            at_end(left, self.remaining),
            at_end(count, self.count),
            versions.mark[torch.cat([context[..., None], slots], -1)],
        )


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with all that is independent of chains."""

    batch: TokenBatch
    hidden: Tensor
    """Hidden states behind each token's decision, (B, T, D)."""
    steps: Steps
    state: EntityState
    carry: Carry
    search: Steps | None = None
    """Steps of searches, if other than ``steps``."""

    def follow(self, chains: Chains) -> GivenChains:
        return GivenChains(self.steps, self.state, chains, self.batch.on_host[1])

    def after(self, chains: Chains) -> EntityState:
        return self.follow(chains).state_after(self.carry)
