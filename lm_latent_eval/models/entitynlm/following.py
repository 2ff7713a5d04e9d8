"""Given chains: their log-probability, the contexts of their words, where they end.

What a slot becomes depends on the mentions of its own entity alone. So entities of all
chains are followed side by side, mention token by mention token, every version of a
slot is kept, and then all decisions of all chains are scored at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.models.entitynlm.chain import NOBODY, Chains, Steps
from lm_latent_eval.models.entitynlm.memory import EntityState, Memory
from lm_latent_eval.models.recurrent import Carry

NUMBERS = 1 << 24
"""Numbers (decisions x slots x D) gathered at a time."""


class Factors(NamedTuple):
    """log p(z_t | z_<t) in nats, each (B, K, T); 0 where there is no such factor."""

    mention: Tensor
    slot: Tensor
    length: Tensor


class Following:
    """B * K given chains, as R rows of T tokens."""

    def __init__(
        self, steps: Steps, state: EntityState, chains: Chains, length: Tensor
    ) -> None:
        """Find out what each token of each chain does.

        Args:
            steps: Of the text.
            state: Where the chains before the text stand, K of them or 1.
            chains: K chains a text.
            length: Tokens of each text, (B,).
        """
        self.shape = chains.entity.shape
        self.steps, self.state, self.length = steps, state, length
        batch, samples, num_tokens = self.shape
        lead, device = (batch, samples), length.device
        inside = torch.arange(num_tokens, device=device) < length[:, None]
        inside = inside[:, None].expand(self.shape).flatten(0, 1)
        self.entity = chains.entity.flatten(0, 1)
        self.remaining = chains.remaining.flatten(0, 1)
        before = state.entity.expand(lead).reshape(-1, 1)
        self.before = torch.cat([before, self.entity], 1)[:, :-1]
        left = state.remaining.expand(lead).reshape(-1, 1)
        self.left = torch.cat([left, self.remaining], 1)[:, :-1]
        """Tokens left of a mention before each token."""
        count = state.memory.count.expand(lead).reshape(-1, 1)
        seen = torch.maximum(self.before.cummax(1).values, count)
        self.count = seen
        """Entities so far."""
        self.slot = self.entity.masked_fill(self.entity > seen, 0)
        """Slots of mentions; an entity to come has that of a new one."""
        self.inside = inside
        self.free = (self.left == 0) & inside

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
    def versions(self) -> Tensor:
        """Slots before the text, (R * S', D), and then each slot after each move."""
        row, t, group = self._moves
        begin = self.state.memory.slots
        begin = begin.expand(*self.shape[:2], *begin.shape[2:]).reshape(
            -1, begin.shape[-1]
        )
        if not len(row):
            return begin
        rank = torch.arange(len(row), device=row.device)
        rank = rank - torch.searchsorted(group, group)
        # All first moves, all second ones, ...: each needs the one before it alone.
        order = rank.argsort(stable=True)
        counts = rank.bincount()
        index_within = torch.empty_like(order)
        first = (counts.cumsum(0) - counts)[rank[order]]
        index_within[order] = torch.arange(len(row), device=row.device) - first
        place = self._place(row, t)
        moved: list[Tensor] = []
        for block in order.split(counts.tolist()):
            if moved:
                slot = moved[-1][index_within[block - 1]]
            else:
                entity = group[block] % self.num_slots
                slot = begin[self._begin(row[block], entity)]
            moved.append(self.steps.moved(place[block], slot))
        return torch.cat([begin, torch.cat(moved)[order.argsort()]])

    def _find(self, row: Tensor, entity: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Find slots when token t is decided.

        Args:
            row: (N,) or what broadcasts with the rest.
            entity: Slots.
            t: Tokens.

        Returns:
            Indices into ``versions``, and when the slots moved last.
        """
        moved_row, moved_t, moved_group = self._moves
        num_tokens = self.shape[2]
        group = row * self.num_slots + entity
        begin = self._begin(row, entity)
        last = self._last_before(row, entity)
        if not len(moved_row):
            return begin, last
        key = moved_group * num_tokens + moved_t
        found = torch.searchsorted(key, group * num_tokens + t, right=True) - 1
        move = found.clamp_min(0)
        has = (found >= 0) & (moved_group[move] == group)
        first = self.shape[0] * self.shape[1] * self.state.memory.slots.shape[2]
        time = self.steps.time[self._place(moved_row, moved_t)] - self.steps.lag
        return torch.where(has, first + move, begin), torch.where(has, time[move], last)

    def _begin(self, row: Tensor, entity: Tensor) -> Tensor:
        """Index into ``versions`` of slots before the text; new ones are as slot 0."""
        width = self.state.memory.slots.shape[2]
        return row * width + entity.masked_fill(entity >= width, 0)

    def _last_before(self, row: Tensor, entity: Tensor) -> Tensor:
        last = self.state.memory.last
        width = last.shape[2]
        last = last.expand(*self.shape[:2], width).reshape(-1, width)
        return last[row, entity.masked_fill(entity >= width, 0)]

    def _place(self, row: Tensor, t: Tensor) -> Tensor:
        return row // self.shape[1] * self.shape[2] + t

    # -- what follows from them -----------------------------------------------------

    def factors(self) -> Factors:
        """Score every decision; a step that cannot happen has ``-inf``."""
        mentions = self.entity != NOBODY
        row, t = self.free.nonzero(as_tuple=True)
        at_once = max(1, NUMBERS // (self.num_slots * self.versions.shape[1]))
        log_mention = torch.cat(
            [
                self._log_mention(r, s).gather(1, mentions[r, s, None].long())[:, 0]
                for r, s in zip(row.split(at_once), t.split(at_once), strict=True)
            ]
        )
        zeros = log_mention.new_zeros(self.entity.shape)
        mention = zeros.index_put((row, t), log_mention)

        row, t = (self.free & mentions).nonzero(as_tuple=True)
        parts = [
            self._begin_mention(r, s)
            for r, s in zip(row.split(at_once), t.split(at_once), strict=True)
        ]
        log_slot, log_length = (torch.cat(part) for part in zip(*parts, strict=True))
        # Strengths that are fitted are float64, whatever the weights are.
        slot = zeros.index_put((row, t), log_slot.to(zeros))
        length = zeros.index_put((row, t), log_length.to(zeros))
        mention = mention.masked_fill(self._impossible(), -torch.inf)
        return Factors(*(x.view(self.shape) for x in (mention, slot, length)))

    def _log_mention(self, row: Tensor, t: Tensor) -> Tensor:
        """Return log p(r_t) of tokens that stand between mentions, (N, 2)."""
        place = self._place(row, t)
        if self.steps.tilt is None:
            return self.steps.mention[place]
        vectors, which = self._contexts
        before = torch.where(t > 0, which[row, t - 1], row)
        mention, _ = self.steps.tilted(place, vectors[before], *self._memory(row, t))
        return mention.log_softmax(-1)

    def _memory(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every slot when token t is decided, when it moved, and how many."""
        every = torch.arange(self.num_slots, device=row.device)
        index, last = self._find(row[:, None], every[None], t[:, None])
        return self.versions[index], last, self.count[row, t]

    def _begin_mention(self, row: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(e_t) and log p(l_t) of mentions that begin, (N,) each."""
        place, slot = self._place(row, t), self.slot[row, t]
        log_slot = self.steps.log_slot(place, *self._memory(row, t))
        index, _ = self._find(row, slot, t)
        log_length = self.steps.log_length(place, self.versions[index])
        longest = log_length.shape[1] - 1
        remaining = self.remaining[row, t].clamp(0, longest)
        return (
            log_slot.gather(1, slot[:, None])[:, 0],
            log_length.gather(1, remaining[:, None])[:, 0],
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

    def contexts(self) -> tuple[Tensor, Tensor]:
        """Return the slots that words are chosen by.

        Returns:
            Vectors (N, D), and which of them each token has, (B, K, T).
        """
        vectors, which = self._contexts
        return vectors, which.view(self.shape)

    @cached_property
    def _contexts(self) -> tuple[Tensor, Tensor]:
        """Contexts before the text, a row each, then ``versions``; of each (R, T)."""
        rows = torch.arange(len(self.entity), device=self.entity.device)
        t = torch.arange(self.shape[2], device=rows.device)
        latest = torch.where(self.entity != NOBODY, t, -1).cummax(1).values
        then = latest.clamp_min(0)
        index, _ = self._find(rows[:, None], self.slot.gather(1, then), then)
        before = self.state.context
        before = before.expand(*self.shape[:2], -1).flatten(0, 1)
        which = torch.where(latest >= 0, len(before) + index, rows[:, None])
        return torch.cat([before, self.versions]), which

    def state_after(self, carry: Carry) -> EntityState:
        """Return where the chains stand after the text.

        Args:
            carry: Where the recurrent layers stand.
        """
        batch, samples, _ = self.shape
        end = self.length.repeat_interleave(samples)[:, None]
        row = torch.arange(batch * samples, device=end.device)[:, None]
        slot = torch.arange(self.num_slots, device=end.device)[None]
        index, last = self._find(row, slot, end - 1)

        def at_end(values: Tensor, before: Tensor) -> Tensor:
            before = before.expand(batch, samples).reshape(-1, 1)
            return torch.cat([before, values], 1).gather(1, end).view(batch, samples)

        vectors, which = self.contexts()
        none = torch.arange(len(row), device=end.device).view(batch, samples)
        context = vectors[at_end(which.flatten(0, 1), none)]
        return EntityState(
            carry,
            self.state.position + self.length,
            Memory(
                self.versions[index].view(batch, samples, self.num_slots, -1),
                last.view(batch, samples, -1),
                at_end(self.count, self.state.memory.count),
            ),
            at_end(self.entity, self.state.entity),
            at_end(self.remaining, self.state.remaining),
            context,
        )
