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
    """log p(z_t | z_<t) in nats, each (B, K, T); 0 where there is no such factor."""

    mention: Tensor
    slot: Tensor
    length: Tensor


class GivenChains:
    """B * K given chains, as R rows of T tokens.

    What is moved when is decided on the host, before anything is scored: chains that a
    device has are waited for once.
    """

    def __init__(
        self, steps: Steps, state: EntityState, chains: Chains, length: Tensor
    ) -> None:
        """Classify the tokens of each chain: inside, beginning or between mentions.

        Args:
            steps: Of the text.
            state: Where the chains before the text stand, K of them or 1.
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
        """Entity, tokens left of its mention and entities before the text, (R, 1)."""
        who, left, count = self.started
        self.before = torch.cat([who, self.entity], 1)[:, :-1]
        self.left = torch.cat([left, self.remaining], 1)[:, :-1]
        """Tokens left of a mention before each token."""
        seen = torch.maximum(self.before.cummax(1).values, count)
        self.count = seen
        """Entities so far."""
        self.slot = self.entity.masked_fill(self.entity > seen, 0)
        """Slots of mentions; an entity to come has that of a new one."""
        self.inside = inside
        self.free = (self.left == 0) & inside

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.steps.query.device)

    # -- every version of every slot ------------------------------------------------

    @cached_property
    def num_slots(self) -> int:
        """S, more than any entity mentioned before the last token."""
        most = int(self.count.max()) if self.count.numel() else 0
        return max(most + 1, self.state.memory.slots.shape[2])

    @cached_property
    def _moves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, times and (row, entity) groups of all moves, group after group."""
        row, t = ((self.before != NOBODY) & self.inside).nonzero(as_tuple=True)
        group = row * self.num_slots + self.before[row, t]
        order = group.argsort(stable=True)
        return row[order], t[order], group[order]

    @cached_property
    def versions(self) -> Versions:
        """Contexts before the text, a row each, slots before it, and all moves."""
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
        place, origin = self._place(row, t), self._begin(row, group % self.num_slots)
        origin = self._alike(mark)[origin]
        # All first moves, all second ones, ...: each needs the one before it alone.
        order, counts = rank.argsort(stable=True), rank.bincount().tolist()
        within = torch.cat([torch.arange(count) for count in counts] or [rank])
        source = torch.where(rank == 0, origin, within[order.argsort()].roll(1))
        source = source[order]
        vectors, log_kept = [begin], [begin.new_zeros(len(begin))]
        log_added = [begin.new_zeros(0)]
        for at, one in zip(
            self._sent(place[order]).split(counts),
            self._sent(source).split(counts),
            strict=True,
        ):
            vector, kept, added = self.steps.moved(at, vectors[-1][one])
            vectors.append(vector)
            log_kept.append(log_kept[-1][one] + _log(kept[:, 0]))
            log_added.append(_log(added[:, 0]))
        marks = [mark]
        time = (self.state.position[row // lead[1]] + t)[order]
        for then, from_ in zip(time.split(counts), source.split(counts), strict=True):
            marks.append(marked(marks[-1][from_], then))
        back = order.argsort()
        mark = torch.cat([marks[0], torch.cat([time[:0], *marks[1:]])[back]])
        back = self._sent(back)
        last = self.state.memory.last.expand(*lead, -1).flatten()
        moved_at = self.steps.time[self._sent(place)] - self.steps.lag
        return Versions(
            begin,
            torch.cat([begin[:0], *vectors[1:]])[back],
            torch.cat([last.new_zeros(len(self.entity)), last, moved_at]),
            mark,
            origin,
            rank,
            place,
            torch.cat([begin[:0, 0], *log_kept[1:]])[back],
            torch.cat(log_added)[back],
            self.steps.update,
        )

    def _alike(self, mark: Tensor) -> Tensor:
        """Represent equal vectors before a text by one of them, (N,) both.

        So chains that begin alike are sums of the same vectors (``Versions.terms``).
        """
        texts = torch.arange(self.shape[0])
        slots = len(mark) // len(self.entity) - 1
        each = self.shape[1] * torch.tensor([1, slots])
        text = torch.cat([texts.repeat_interleave(number) for number in each])
        _, which = marked(mark, text).unique(return_inverse=True)
        every = torch.arange(len(mark))
        first = torch.full_like(every, len(mark))
        return first.scatter_reduce(0, which, every, "amin")[which]

    def _find(self, row: Tensor, entity: Tensor, t: Tensor) -> Tensor:
        """Find slots when token t is decided, as indices into ``versions``."""
        moved_row, moved_t, moved_group = self._moves
        num_tokens = self.shape[2]
        group = row * self.num_slots + entity
        begin = self._begin(row, entity)
        if not len(moved_row):
            return begin.expand(torch.broadcast_shapes(begin.shape, t.shape))
        key = moved_group * num_tokens + moved_t
        found = torch.searchsorted(key, group * num_tokens + t, right=True) - 1
        move = found.clamp_min(0)
        has = (found >= 0) & (moved_group[move] == group)
        return torch.where(has, len(self.versions.begin) + move, begin)

    def _begin(self, row: Tensor, entity: Tensor) -> Tensor:
        """Find slots before the text; those of entities to come are as slot 0."""
        width = self.state.memory.slots.shape[2]
        num_rows = self.shape[0] * self.shape[1]
        return num_rows + row * width + entity.masked_fill(entity >= width, 0)

    def _place(self, row: Tensor, t: Tensor) -> Tensor:
        return row // self.shape[1] * self.shape[2] + t

    # -- what follows from them -----------------------------------------------------

    def factors(self) -> Factors:
        """Score every decision; a step that cannot happen has ``-inf``."""
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
        """Return log p(r_t) of tokens that stand between mentions, (N, 2)."""
        place = self._sent(self._place(row, t))
        if self.steps.twist is None:
            return self.steps.mention[place]
        before = torch.where(t > 0, self._which[row, t - 1], row)
        context = self.versions.vectors[self._sent(before)]
        mention, _ = self.steps.twisted(place, context, *self._memory(row, t))
        return mention.log_softmax(-1)

    def _memory(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every slot when token t is decided, when it moved, and how many."""
        every = torch.arange(self.num_slots)
        index = self._sent(self._find(row[:, None], every[None], t[:, None]))
        count = self._sent(self.count[row, t])
        return self.versions.vectors[index], self.versions.time[index], count

    def _begin_mention(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(e_t) and log p(l_t) of mentions that begin, (N,) each."""
        place, slot = self._sent(self._place(row, t)), self.slot[row, t]
        log_slot = self.steps.log_slot(place, *self._memory(row, t))
        vector = self.versions.vectors[self._sent(self._find(row, slot, t))]
        log_length = self.steps.log_length(place, vector)
        longest = log_length.shape[1] - 1
        remaining = self.remaining[row, t].clamp(0, longest)
        return (
            log_slot.gather(1, self._sent(slot[:, None]))[:, 0],
            log_length.gather(1, self._sent(remaining[:, None]))[:, 0],
        )

    def _impossible(self) -> Tensor:
        """Which steps cannot happen, (R, T) bool."""
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
        """Return log p(z_t | z_<t) in nats, (B, K, T) float64; 0 past the end."""
        mention, slot, length = self.factors()
        return widened(mention) + slot + length

    def contexts(self) -> tuple[Versions, Tensor]:
        """Return the slot that each word is predicted from.

        Returns:
            Versions, and which of them each token has, -1 past the end, (B, K, T), on
            the host.
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
        """Return where the chains stand after the text."""
        lead = self.shape[:2]
        end = self.length.repeat_interleave(lead[1])[:, None]
        row = torch.arange(len(end))[:, None]

        def at_end(before: Tensor, values: Tensor) -> Tensor:
            return torch.cat([before, values], 1).gather(1, end).view(lead)

        slots = self._find(row, torch.arange(self.num_slots), end - 1).view(*lead, -1)
        context = at_end(row, self._which)
        versions, (who, left, count) = self.versions, self.started
        there = self._sent(slots)
        return EntityState(
            carry,
            Memory(versions.vectors[there], versions.time[there]),
            versions.vectors[self._sent(context)],
            self.state.position + self.length,
            at_end(who, self.entity),
            at_end(left, self.remaining),
            at_end(count, self.count),
            versions.mark[torch.cat([context[..., None], slots], -1)],
        )


def _log(value: Tensor) -> Tensor:
    """Return the logarithm of numbers that may have underflowed."""
    return value.clamp_min(torch.finfo(value.dtype).tiny).log()


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with everything that no chain changes."""

    batch: TokenBatch
    hidden: Tensor
    """Hidden states that each token's decision depends on, (B, T, D)."""
    steps: Steps
    state: EntityState
    """State of the chains before the pieces."""
    carry: Carry
    search: Steps | None = None
    """Steps of searches, if not ``steps``."""

    def follow(self, chains: Chains) -> GivenChains:
        """Return the given chains over the pieces."""
        return GivenChains(self.steps, self.state, chains, self.batch.on_host[1])

    def after(self, chains: Chains) -> EntityState:
        """Return the state after the pieces under the given chains."""
        return self.follow(chains).state_after(self.carry)
