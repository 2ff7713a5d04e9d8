"""Steps of EntityNLM's chains for the engine: draws and prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, sent_uniforms, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.particles import not_negligible
from lm_latent_eval.inference.step_choices import Choices, Dense
from lm_latent_eval.inference.steps import Drawn, Taken
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.entitynlm.latents import (
    NOBODY,
    EntityState,
    Memory,
    Steps,
)


@dataclass(frozen=True)
class Unfolding:
    """State of R chains while they are extended, flat; it owns ``memory``."""

    memory: Memory
    count: Tensor
    """Number of entities mentioned so far, (R,)."""
    entity: Tensor
    """Entity of the last token, (R,)."""
    remaining: Tensor
    """Number of further tokens of its mention, (R,)."""
    context: Tensor
    """Slot that words are predicted from until the next mention, (R, D)."""

    @classmethod
    def after(cls, state: EntityState, num_chains: int) -> Unfolding:
        """Continue K chains a text, or one chain K times."""
        lead = (len(state.entity), num_chains)
        count, entity, remaining = (
            sent(column.expand(lead).flatten().clone(), state.context.device)
            for column in (state.count, state.entity, state.remaining)
        )
        context = state.context.expand(*lead, -1).flatten(0, 1).clone()
        return cls(state.memory.flat(num_chains), count, entity, remaining, context)

    def __getitem__(self, index: Tensor) -> Unfolding:
        return Unfolding(
            self.memory[index],
            self.count[index],
            self.entity[index],
            self.remaining[index],
            self.context[index],
        )

    def settle(self, steps: Steps, row: Tensor, position: Tensor) -> None:
        """Move the slots of the last tokens' entities *in place*.

        The words of a continued mention use the slot as moved so far.

        Args:
            steps: Steps of the text.
            row: Rows whose last token is in a mention.
            position: Position of the next token of each text, (B,).
        """
        position = position[row // (len(self.entity) // len(position))]
        entity = self.entity[row]
        slot = steps.moved(position, self.memory.slots[row, entity])
        self.memory.write(row, entity, slot, steps.time[position] - steps.lag)
        self.count[row] = torch.maximum(self.count[row], entity)
        inside = (self.remaining[row] > 0)[:, None]
        self.context[row] = torch.where(inside, slot, self.context[row])

    def with_slots(self, last_entity: int) -> Unfolding:
        return replace(self, memory=self.memory.widened(last_entity + 1))


@dataclass(frozen=True)
class ChainState:
    """State of K chains of each of B texts, in (B K) rows."""

    unfolding: Unfolding
    num_chains: int
    mentioned: tuple[Tensor, int] | None
    """Rows in a mention, on the host, and the largest entity; None if not yet
    fetched."""


@dataclass(frozen=True)
class ChainSteps:
    """Steps of chains over a piece."""

    steps: Steps
    state: EntityState
    length: Tensor
    _settled: list[Unfolding] = field(default_factory=list)
    """Chains whose choices were listed last, their slots moved."""
    num_columns: ClassVar[int] = 2

    @property
    def num_steps(self) -> int:
        return self.steps.num_tokens

    def begin(self, num_histories: int | None) -> ChainState:
        """Chains before the piece: K, or those of the state."""
        chains = num_histories or self.state.num_chains
        entity = self.state.entity.expand(-1, chains).flatten()
        unfolding = Unfolding.after(self.state, chains)
        return ChainState(unfolding, chains, mentions(entity))

    def num_histories(self, state: ChainState) -> int:
        return state.num_chains

    def _positions(self, t: int) -> Tensor:
        every = torch.arange(len(self.length), device=self.length.device)
        return every * self.steps.num_tokens + t

    def _moved(self, state: ChainState, position: Tensor) -> Unfolding:
        mentioned, last_entity = state.mentioned or mentions(state.unfolding.entity)
        unfolding = state.unfolding.with_slots(last_entity)
        unfolding.settle(self.steps, sent(mentioned, position.device), position)
        return unfolding

    def choices(
        self, state: ChainState, t: int, score: Tensor, cut: Cut | None
    ) -> Dense:
        """List choices, ranked as ``log_options`` says."""
        position = self._positions(t)
        unfolding = self._moved(state, position)
        self._settled[:] = [unfolding]
        option = log_options(self.steps, unfolding, position)
        return Dense(option.view(*score.shape, -1))

    def take(
        self,
        state: ChainState,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        [unfolding] = self._settled
        first = torch.arange(len(origin), device=origin.device)[:, None]
        unfolding = unfolding[(first * state.num_chains + origin).flatten()]
        _choose(unfolding, choice.flatten(), self.steps.length.shape[-1])
        columns = (
            x.view(origin.shape).clone()
            for x in (unfolding.entity, unfolding.remaining)
        )
        return Taken(ChainState(unfolding, origin.shape[1], None), tuple(columns))

    def draw(
        self, state: ChainState, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw the decisions of token t.

        The first random number of the token decides on a mention, the second on the
        entity, the third on the length. The host waits for a device once a token, to
        learn which chains begin a mention. At the last token all chains draw one,
        needed or not.
        """
        steps, device, position = self.steps, self.length.device, self._positions(t)
        unfolding, uniform = self._moved(state, position), uniforms(t)
        num_samples, u = uniform.shape[1], sent_uniforms(uniform.flatten(0, 1), device)
        if origin is not None:
            first = torch.arange(len(uniform), device=device)[:, None]
            chosen = first * state.num_chains + sent(origin, device)
            unfolding = unfolding[chosen.flatten()]
        memory, end = unfolding.memory, self.length.repeat_interleave(num_samples)
        active = end > t
        # Inside a mention z_t is determined.
        inside = active & (unfolding.remaining > 0)
        unfolding.entity.masked_fill_(~inside, NOBODY)
        unfolding.remaining.sub_(1).masked_fill_(~inside, 0)
        if steps.twist is None:
            log_mention, twisted = steps.log_mention(position, len(end)), None
        else:
            slots = memory.slots, memory.last, unfolding.count
            log_mention, twisted = steps.twisted(position, unfolding.context, *slots)
            log_mention = log_mention.log_softmax(-1)
        mention = invert_cdf(log_mention.exp(), u[:, 0])
        free = active & ~inside
        log_q = _chosen(log_mention, mention).masked_fill(~free, 0.0)
        begins, row = free & (mention > 0), torch.arange(len(end))
        mentioned = None
        if t + 1 < steps.num_tokens:
            begun, going, count = fetched(begins.long(), inside.long(), unfolding.count)
            rows, row = (x.nonzero()[:, 0] for x in (begun + going, begun))
            mentioned = rows, int((begun + count).max())
        row = sent(row, device)
        begins, position, count = (
            begins[row],
            position[row // num_samples],
            unfolding.count[row],
        )
        if twisted is None:
            log_slot = steps.log_slot(
                position, memory.slots[row], memory.last[row], count
            )
        else:
            log_slot = twisted[row].log_softmax(-1)
        slot = invert_cdf(log_slot.exp(), u[row, 1])
        vector = memory.slots[row, slot]
        log_length = steps.log_length(position, vector)
        remaining = invert_cdf(log_length.exp(), u[row, 2])
        log_begun = _chosen(log_slot, slot) + _chosen(log_length, remaining)
        log_q[row] += log_begun.masked_fill(~begins, 0.0)
        entity = torch.where(slot == 0, count + 1, slot)
        unfolding.entity[row] = torch.where(begins, entity, unfolding.entity[row])
        unfolding.remaining[row] = torch.where(
            begins, remaining, unfolding.remaining[row]
        )
        unfolding.context[row] = torch.where(
            begins[:, None], vector, unfolding.context[row]
        )
        columns = (
            x.view(-1, num_samples).clone()
            for x in (unfolding.entity, unfolding.remaining)
        )
        after = ChainState(unfolding, num_samples, mentioned)
        return Drawn(after, tuple(columns), log_q.view(-1, num_samples), origin)


def mentions(entity: Tensor) -> tuple[Tensor, int]:
    """Rows in a mention, on the host, and the largest entity."""
    (entity,) = fetched(entity)
    return (entity != NOBODY).nonzero()[:, 0], int(entity.max()) if len(entity) else 0


def log_options(steps: Steps, unfolding: Unfolding, position: Tensor) -> Tensor:
    """Contributions of each choice of z_t to the rank of a chain, (R, 1 + S * M) nats.

    Without a twist they are log q(z_t), else log p(z_t) + log psi; inside a mention
    only psi is left. ``position`` is that of each text, (B,).

    Choice 0 is no mention or, inside one, its next token; choice 1 + s * M + l is a
    mention of slot s (0: a new entity) with l further tokens.
    """
    memory = unfolding.memory
    slots = memory.slots, memory.last, unfolding.count
    if steps.twist is None:
        log_mention = steps.log_mention(position, len(unfolding.entity))
        log_slot = steps.log_slot(position, *slots)
        continued = torch.zeros_like(log_slot[:, 0])
    else:
        log_mention, twisted = steps.twisted(position, unfolding.context, *slots)
        log_slot, continued = (
            twisted.log_softmax(-1),
            steps.log_psi(position, unfolding.context),
        )
    log_length = steps.log_length(position, memory.slots)
    begin = log_mention[:, 1, None, None] + log_slot[..., None] + log_length
    option = torch.cat([log_mention[:, :1], begin.flatten(1)], 1)
    inside = unfolding.remaining > 0
    option = option.masked_fill(inside[:, None], -torch.inf)
    option[:, 0] = torch.where(inside, continued, option[:, 0])
    return option


def _choose(unfolding: Unfolding, which: Tensor, num_lengths: int) -> None:
    """Apply a choice of ``log_options`` to each row, *in place*."""
    memory, row = unfolding.memory, torch.arange(len(which), device=which.device)
    slot = ((which - 1) // num_lengths).clamp_min(0)
    new = torch.where(slot == 0, unfolding.count + 1, slot)
    inside = unfolding.remaining > 0
    begins = ~inside & (which > 0)
    unfolding.entity.masked_fill_(~inside, NOBODY)
    unfolding.entity.copy_(torch.where(begins, new, unfolding.entity))
    left = (unfolding.remaining - 1).clamp_min(0)
    unfolding.remaining.copy_(torch.where(begins, (which - 1) % num_lengths, left))
    vector = torch.where(begins[:, None], memory.slots[row, slot], unfolding.context)
    unfolding.context.copy_(vector)


def _chosen(log_prob: Tensor, column: Tensor) -> Tensor:
    return widened(log_prob.gather(1, column[:, None])[:, 0])


# -- next-word distribution ---------------------------------------------------------


def weighted_contexts(
    steps: Steps, state: EntityState, log_w: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Contexts of each text's next token.

    The next token is outside mentions and keeps the context, continues a mention, or
    begins one of a known or new entity. The length is irrelevant here.

    Args:
        steps: Steps of the text, whose first token is predicted.
        state: K histories of B texts.
        log_w: Their log-weights in nats, (B, K).

    Yields:
        Probabilities (N,) and contexts (N, D) of one text.
    """
    batch, histories = log_w.shape
    position = torch.arange(batch, device=log_w.device) * steps.num_tokens
    unfolding = Unfolding.after(state, histories)
    mentioned, last_entity = mentions(state.entity.expand(batch, histories).flatten())
    unfolding = unfolding.with_slots(last_entity)
    unfolding.settle(steps, sent(mentioned, position.device), position)
    memory = unfolding.memory
    log_slot = steps.log_slot(position, memory.slots, memory.last, unfolding.count)
    log_mention = steps.log_mention(position, batch * histories)
    log_prob = torch.cat([log_mention[:, :1], log_mention[:, 1:] + log_slot], 1)
    inside = (unfolding.remaining > 0)[:, None]
    same = torch.full_like(log_prob, -torch.inf)
    same = same.scatter(1, 1 + unfolding.entity[:, None], 0.0)
    log_prob = torch.where(inside, same, log_prob)
    old = state.context.expand(batch, histories, -1).flatten(0, 1)[:, None]
    contexts = torch.cat([old, memory.slots], 1)

    log_weight = log_w.log_softmax(-1).to(log_prob.dtype).flatten()
    prob = (log_prob + log_weight[:, None]).exp()
    for weight, context in zip(prob.chunk(batch), contexts.chunk(batch), strict=True):
        keep = not_negligible(weight.flatten())
        yield weight.flatten()[keep], context.flatten(0, 1)[keep]
