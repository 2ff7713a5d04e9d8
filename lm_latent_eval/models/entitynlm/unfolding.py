"""Chains from their first token to their last: sampling and searching them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.entitynlm.chain import NOBODY, Chains, Steps
from lm_latent_eval.models.entitynlm.memory import EntityState, Memory
from lm_latent_eval.models.ties import best_of


@dataclass(frozen=True)
class Unfolding:
    """Where R chains stand while they unfold, flat; ``memory`` is their own."""

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
        """Pick rows."""
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
        """Return room for entities up to a number."""
        return replace(self, memory=self.memory.widened(most + 1))


def sample_chains(
    steps: Steps,
    state: EntityState,
    length: Tensor,
    uniforms: Uniforms,
    origin: Tensor,
) -> tuple[Chains, Tensor, Tensor]:
    """Draw chains from left to right, which continue those of the state, (B, K).

    Every decision is drawn: whether there is a mention by the first random number of
    its token, of whom by the second, how long by the third. A device is waited for once
    a token: then it is known which chains begin a mention. Of the last token all draw
    one, wanted or not, and then the chains are waited for, with ``origin``.

    Returns:
        The chains, log q, (B, K) float64, and ``origin`` on the host.
    """
    (batch, num_samples), device = origin.shape, length.device
    walk = Unfolding.after(state, state.num_chains)
    first = torch.arange(batch, device=device) * steps.num_tokens
    end = length.repeat_interleave(num_samples)
    found = length.new_zeros(2, len(end), steps.num_tokens)
    log_q = wide_zeros((len(end),), device)
    mentioned, most = mentions(state.entity.flatten())
    walk = walk.roomy(most)
    chosen = torch.arange(batch, device=device)[:, None] * state.num_chains
    chosen = (chosen + sent(origin, device)).flatten()
    for t in range(steps.num_tokens):
        place, u = first + t, sent_uniforms(uniforms(t).flatten(0, 1), device)
        walk.settle(steps, sent(mentioned, device), place)
        walk = walk if t else walk[chosen]
        memory, going_on = walk.memory, end > t
        # Inside a mention there is nothing to decide.
        inside = going_on & (walk.remaining > 0)
        walk.entity.masked_fill_(~inside, NOBODY)
        walk.remaining.sub_(1).masked_fill_(~inside, 0)
        if steps.tilt is None:
            log_mention, tilted = steps.log_mention(place, len(end)), None
        else:
            slots = memory.slots, memory.last, walk.count
            log_mention, tilted = steps.tilted(place, walk.context, *slots)
            log_mention = log_mention.log_softmax(-1)
        mention = invert_cdf(log_mention.exp(), u[:, 0])
        free = going_on & ~inside
        log_q += _chosen(log_mention, mention).masked_fill(~free, 0.0)
        begins, row = free & (mention > 0), torch.arange(len(end))
        if t + 1 < steps.num_tokens:
            begun, going, count = fetched(begins.long(), inside.long(), walk.count)
            mentioned, row = (x.nonzero()[:, 0] for x in (begun + going, begun))
            most = int((begun + count).max())
        row = sent(row, device)
        begins, place, count = begins[row], place[row // num_samples], walk.count[row]
        if tilted is None:
            log_slot = steps.log_slot(place, memory.slots[row], memory.last[row], count)
        else:
            log_slot = tilted[row].log_softmax(-1)
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
        found[0, :, t], found[1, :, t] = walk.entity, walk.remaining
        walk = walk.roomy(most)
    found = found.view(2, batch, num_samples, steps.num_tokens)
    found, origin = fetched(found, origin)
    return Chains(found[0], found[1]), log_q.view(batch, num_samples), origin


def mentions(entity: Tensor) -> tuple[Tensor, int]:
    """Return which rows mention somebody, on the host, and the largest entity."""
    (entity,) = fetched(entity)
    return (entity != NOBODY).nonzero()[:, 0], int(entity.max()) if len(entity) else 0


def beam_chains(
    steps: Steps, state: EntityState, score: Tensor, length: Tensor, width: int
) -> tuple[Chains, Tensor, Tensor]:
    """Keep the ``width`` most promising distinct beginnings after every token.

    They are ranked by log q, or, where there is a tilt, by all that went into it: by
    log p of chain and words so far, as far as psi knows the words.

    Args:
        steps: Of the text.
        state: Where the K chains so far stand.
        score: Their ranks so far, nats, (B, K) float64; ``-inf``: there is none.
        length: Tokens of each text, (B,).
        width: Chains to keep.

    Returns:
        Chains (B, width, T), on the host, their scores (B, width) with ``-inf`` where
        there is none, and which of the K chains so far each of them continues,
        (B, width). Exact if no text has more than ``width`` chains.
    """
    batch, num_tokens, device = len(length), steps.num_tokens, length.device
    texts = torch.arange(batch, device=device)[:, None]
    every = torch.arange(width, device=device)
    size = max(width, state.num_chains)
    start = torch.arange(size).clamp_max(state.num_chains - 1).repeat(batch, 1)
    walk, start = Unfolding.after(state.resample(start), size), sent(start, device)
    score = F.pad(score, (0, size - state.num_chains), value=-torch.inf)
    stay = best_of(score, width).sort().values  # of a text without a token
    came_from = start.new_zeros(num_tokens, batch, width)
    found = start.new_zeros(2, num_tokens, batch, width)
    for t in range(num_tokens):
        going_on, place = (length > t)[:, None], texts[:, 0] * num_tokens + t
        mentioned, most = mentions(walk.entity)
        walk = walk.roomy(most)
        walk.settle(steps, sent(mentioned, device), place)
        option = widened(log_options(steps, walk, place))
        total = (option + score.reshape(-1, 1)).view(batch, -1)
        best = best_of(total, width)
        chosen, which = best // option.shape[1], best % option.shape[1]
        came_from[t] = torch.where(going_on, chosen, stay)
        walk = walk[(texts * score.shape[1] + came_from[t]).flatten()]
        _choose(walk, which.flatten(), steps.length.shape[-1])
        found[0, t] = walk.entity.view(batch, width)
        found[1, t] = walk.remaining.view(batch, width)
        score = torch.where(going_on, total.gather(1, best), score.gather(1, stay))
        stay = every.expand(batch, width)
    # Walk back along the links.
    origin = every.repeat(batch, 1) if num_tokens else stay
    score = score.gather(1, origin)
    result = start.new_zeros(2, batch, width, num_tokens)
    for t in reversed(range(num_tokens)):
        result[..., t] = found[:, t, texts, origin]
        origin = came_from[t, texts, origin]
    result = result.masked_fill((_places(num_tokens, length))[:, None], 0)
    (result,) = fetched(result)
    return Chains(result[0], result[1]), score, start.gather(1, origin)


def log_options(steps: Steps, walk: Unfolding, place: Tensor) -> Tensor:
    """Return what a choice of z_t adds to the rank of a chain, (R, 1 + S * M) nats.

    ``place`` is that of each text, (B,).

    Without a tilt it is log q(z_t), else log p(z_t) + log psi, which stands for that of
    the token; inside a mention nothing is decided, and only psi is left.

    Choice 0 is no mention or, inside one, its next token; choice 1 + s * M + l is a
    mention of slot s (0: a new entity) with l further tokens.
    """
    memory = walk.memory
    slots = memory.slots, memory.last, walk.count
    if steps.tilt is None:
        log_mention = steps.log_mention(place, len(walk.entity))
        log_slot = steps.log_slot(place, *slots)
        going_on = torch.zeros_like(log_slot[:, 0])
    else:
        log_mention, tilted = steps.tilted(place, walk.context, *slots)
        log_slot, going_on = tilted.log_softmax(-1), steps.log_psi(place, walk.context)
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


def invert_cdf(prob: Tensor, u: Tensor) -> Tensor:
    """Draw from the distribution of each row by inverting its cdf.

    Args:
        prob: Probabilities, (R, N); each row has some that are positive.
        u: A number in (0, 1) each, (R,).

    Returns:
        Columns of positive probability, (R,).

    Example:
        >>> prob = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0]])
        >>> invert_cdf(prob, torch.tensor([0.2, 0.999], dtype=torch.float64))
        tensor([0, 1])
    """
    mass = widened(prob).cumsum(-1)
    # Below the total despite rounding, so that no column after the last is drawn.
    below = torch.nextafter(mass[:, -1], mass.new_zeros(()))
    target = torch.minimum(u * mass[:, -1], below)
    return torch.searchsorted(mass, target[:, None], right=True)[:, 0]


def _chosen(log_prob: Tensor, column: Tensor) -> Tensor:
    return widened(log_prob.gather(1, column[:, None])[:, 0])


def _places(num_tokens: int, length: Tensor) -> Tensor:
    """Which places lie beyond the end of their text, (B, T)."""
    return torch.arange(num_tokens, device=length.device) >= length[:, None]
