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
    """State of R chains while they are extended, flat; ``memory`` is their own."""

    memory: Memory
    count: Tensor
    """Entities mentioned so far, (R,)."""
    entity: Tensor
    """Of the last token, (R,)."""
    remaining: Tensor
    """Tokens that are left of its mention, (R,)."""
    context: Tensor
    """The slot that words are chosen by until the next mention, (R, D)."""

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

    def settle(self, steps: Steps, row: Tensor, place: Tensor) -> None:
        """Move the slots of the last tokens' entities *in place*.

        A mention that goes on is worded by the slot that it has moved so far.

        Args:
            steps: Of the text.
            row: Rows whose last token mentions somebody.
            place: The places of the next token of each text, (B,).
        """
        place = place[row // (len(self.entity) // len(place))]
        entity = self.entity[row]
        slot, _, _ = steps.moved(place, self.memory.slots[row, entity])
        self.memory.write(row, entity, slot, steps.time[place] - steps.lag)
        self.count[row] = torch.maximum(self.count[row], entity)
        inside = (self.remaining[row] > 0)[:, None]
        self.context[row] = torch.where(inside, slot, self.context[row])

    def roomy(self, most: int) -> Unfolding:
        """Return it with slots for entities up to a number."""
        return replace(self, memory=self.memory.widened(most + 1))


@dataclass(frozen=True)
class Standing:
    """State of K chains of each of B texts."""

    walk: Unfolding
    """(B K) rows."""
    num_chains: int
    """K."""
    mentioned: tuple[Tensor, int] | None
    """Which rows mention somebody, on the host, and the largest entity; None: that has
    not been asked for yet."""


@dataclass(frozen=True)
class ChainSteps:
    """The steps of chains over a piece, where the model is."""

    steps: Steps
    state: EntityState
    """Before the piece."""
    length: Tensor
    """Tokens of each text, (B,)."""
    _settled: list[Unfolding] = field(default_factory=list)
    """The chains that were asked for their choices last, their slots moved."""
    num_columns: ClassVar[int] = 2

    @property
    def num_steps(self) -> int:
        """T."""
        return self.steps.num_tokens

    def begin(self, num_histories: int | None) -> Standing:
        """Return the chains before the piece: K, or those there are."""
        chains = num_histories or self.state.num_chains
        entity = self.state.entity.expand(-1, chains).flatten()
        walk = Unfolding.after(self.state, chains)
        return Standing(walk, chains, mentions(entity))

    def num_histories(self, state: Standing) -> int:
        """Return K."""
        return state.num_chains

    def _places(self, t: int) -> Tensor:
        """Return the places of token t, (B,)."""
        every = torch.arange(len(self.length), device=self.length.device)
        return every * self.steps.num_tokens + t

    def _moved(self, state: Standing, place: Tensor) -> Unfolding:
        """Move the slots of the entities that the last tokens mention."""
        mentioned, most = state.mentioned or mentions(state.walk.entity)
        walk = state.walk.roomy(most)
        walk.settle(self.steps, sent(mentioned, place.device), place)
        return walk

    def choices(self, state: Standing, t: int, score: Tensor, cut: Cut | None) -> Dense:
        """List what may follow, ranked as ``log_options`` says."""
        place = self._places(t)
        walk = self._moved(state, place)
        self._settled[:] = [walk]
        option = log_options(self.steps, walk, place)
        return Dense(option.view(*score.shape, -1))

    def take(
        self,
        state: Standing,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        """Extend chains by chosen steps."""
        [walk] = self._settled
        first = torch.arange(len(origin), device=origin.device)[:, None]
        walk = walk[(first * state.num_chains + origin).flatten()]
        _choose(walk, choice.flatten(), self.steps.length.shape[-1])
        columns = (x.view(origin.shape).clone() for x in (walk.entity, walk.remaining))
        return Taken(Standing(walk, origin.shape[1], None), tuple(columns))

    def draw(
        self, state: Standing, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw the decisions of token t.

        Whether there is a mention is drawn by the first random number of the token, of
        whom by the second, how long by the third. A device is waited for once a token:
        then it is known which chains begin a mention. Of the last token all draw one,
        wanted or not.
        """
        steps, device, place = self.steps, self.length.device, self._places(t)
        walk, numbers = self._moved(state, place), uniforms(t)
        num_samples, u = numbers.shape[1], sent_uniforms(numbers.flatten(0, 1), device)
        if origin is not None:
            first = torch.arange(len(numbers), device=device)[:, None]
            chosen = first * state.num_chains + sent(origin, device)
            walk = walk[chosen.flatten()]
        memory, end = walk.memory, self.length.repeat_interleave(num_samples)
        going_on = end > t
        # Inside a mention there is nothing to decide.
        inside = going_on & (walk.remaining > 0)
        walk.entity.masked_fill_(~inside, NOBODY)
        walk.remaining.sub_(1).masked_fill_(~inside, 0)
        if steps.twist is None:
            log_mention, twisted = steps.log_mention(place, len(end)), None
        else:
            slots = memory.slots, memory.last, walk.count
            log_mention, twisted = steps.twisted(place, walk.context, *slots)
            log_mention = log_mention.log_softmax(-1)
        mention = invert_cdf(log_mention.exp(), u[:, 0])
        free = going_on & ~inside
        log_q = _chosen(log_mention, mention).masked_fill(~free, 0.0)
        begins, row = free & (mention > 0), torch.arange(len(end))
        mentioned = None
        if t + 1 < steps.num_tokens:
            begun, going, count = fetched(begins.long(), inside.long(), walk.count)
            rows, row = (x.nonzero()[:, 0] for x in (begun + going, begun))
            mentioned = rows, int((begun + count).max())
        row = sent(row, device)
        begins, place, count = begins[row], place[row // num_samples], walk.count[row]
        if twisted is None:
            log_slot = steps.log_slot(place, memory.slots[row], memory.last[row], count)
        else:
            log_slot = twisted[row].log_softmax(-1)
        slot = invert_cdf(log_slot.exp(), u[row, 1])
        vector = memory.slots[row, slot]
        log_length = steps.log_length(place, vector)
        remaining = invert_cdf(log_length.exp(), u[row, 2])
        log_begun = _chosen(log_slot, slot) + _chosen(log_length, remaining)
        log_q[row] += log_begun.masked_fill(~begins, 0.0)
        entity = torch.where(slot == 0, count + 1, slot)
        walk.entity[row] = torch.where(begins, entity, walk.entity[row])
        walk.remaining[row] = torch.where(begins, remaining, walk.remaining[row])
        walk.context[row] = torch.where(begins[:, None], vector, walk.context[row])
        columns = (
            x.view(-1, num_samples).clone() for x in (walk.entity, walk.remaining)
        )
        after = Standing(walk, num_samples, mentioned)
        return Drawn(after, tuple(columns), log_q.view(-1, num_samples), origin)


def mentions(entity: Tensor) -> tuple[Tensor, int]:
    """Return which rows mention an entity, on the host, and the largest entity."""
    (entity,) = fetched(entity)
    return (entity != NOBODY).nonzero()[:, 0], int(entity.max()) if len(entity) else 0


def log_options(steps: Steps, walk: Unfolding, place: Tensor) -> Tensor:
    """Return what a choice of z_t adds to the rank of a chain, (R, 1 + S * M) nats.

    ``place`` is that of each text, (B,).

    Without a twist it is log q(z_t), else log p(z_t) + log psi, which stands for that
    of the token; inside a mention nothing is decided, and only psi is left.

    Choice 0 is no mention or, inside one, its next token; choice 1 + s * M + l is a
    mention of slot s (0: a new entity) with l further tokens.
    """
    memory = walk.memory
    slots = memory.slots, memory.last, walk.count
    if steps.twist is None:
        log_mention = steps.log_mention(place, len(walk.entity))
        log_slot = steps.log_slot(place, *slots)
        going_on = torch.zeros_like(log_slot[:, 0])
    else:
        log_mention, twisted = steps.twisted(place, walk.context, *slots)
        log_slot, going_on = twisted.log_softmax(-1), steps.log_psi(place, walk.context)
    log_length = steps.log_length(place, memory.slots)
    begin = log_mention[:, 1, None, None] + log_slot[..., None] + log_length
    option = torch.cat([log_mention[:, :1], begin.flatten(1)], 1)
    inside = walk.remaining > 0
    option = option.masked_fill(inside[:, None], -torch.inf)
    option[:, 0] = torch.where(inside, going_on, option[:, 0])
    return option


def _choose(walk: Unfolding, which: Tensor, num_lengths: int) -> None:
    """Apply a choice of ``log_options`` to each row, *in place*."""
    memory, row = walk.memory, torch.arange(len(which), device=which.device)
    slot = ((which - 1) // num_lengths).clamp_min(0)
    new = torch.where(slot == 0, walk.count + 1, slot)
    inside = walk.remaining > 0
    begins = ~inside & (which > 0)
    walk.entity.masked_fill_(~inside, NOBODY)
    walk.entity.copy_(torch.where(begins, new, walk.entity))
    left = (walk.remaining - 1).clamp_min(0)
    walk.remaining.copy_(torch.where(begins, (which - 1) % num_lengths, left))
    vector = torch.where(begins[:, None], memory.slots[row, slot], walk.context)
    walk.context.copy_(vector)


def _chosen(log_prob: Tensor, column: Tensor) -> Tensor:
    return widened(log_prob.gather(1, column[:, None])[:, 0])


# -- next-word distribution ---------------------------------------------------------


def weighted_contexts(
    steps: Steps, state: EntityState, log_w: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the contexts of each text's next token.

    The next token mentions nobody, and keeps the context; or goes on with a mention; or
    begins one, of a known entity or of a new one. How long does not matter yet.

    Args:
        steps: Of the text; its first token is the one to predict.
        state: K histories of B texts.
        log_w: Their log-weights in nats, (B, K).

    Yields:
        Probabilities (N,) and contexts (N, D) of one text.
    """
    batch, histories = log_w.shape
    place = torch.arange(batch, device=log_w.device) * steps.num_tokens
    walk = Unfolding.after(state, histories)
    mentioned, most = mentions(state.entity.expand(batch, histories).flatten())
    walk = walk.roomy(most)
    walk.settle(steps, sent(mentioned, place.device), place)
    memory = walk.memory
    log_slot = steps.log_slot(place, memory.slots, memory.last, walk.count)
    log_mention = steps.log_mention(place, batch * histories)
    log_prob = torch.cat([log_mention[:, :1], log_mention[:, 1:] + log_slot], 1)
    inside = (walk.remaining > 0)[:, None]
    same = torch.full_like(log_prob, -torch.inf)
    same = same.scatter(1, 1 + walk.entity[:, None], 0.0)
    log_prob = torch.where(inside, same, log_prob)
    old = state.context.expand(batch, histories, -1).flatten(0, 1)[:, None]
    contexts = torch.cat([old, memory.slots], 1)

    log_weight = log_w.log_softmax(-1).to(log_prob.dtype).flatten()
    prob = (log_prob + log_weight[:, None]).exp()
    for weight, context in zip(prob.chunk(batch), contexts.chunk(batch), strict=True):
        keep = not_negligible(weight.flatten())
        yield weight.flatten()[keep], context.flatten(0, 1)[keep]
