"""Chains from their first token to their last: sampling and searching them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import wide_zeros, widened
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.entitynlm.chain import NOBODY, Chains, Steps
from lm_latent_eval.models.entitynlm.memory import EntityState, Memory
from lm_latent_eval.models.ties import ranks


@dataclass(frozen=True)
class Unfolding:
    """Where R chains stand while they unfold, flat; ``memory`` is their own."""

    memory: Memory
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
        return cls(
            state.memory.flat(num_chains),
            state.entity.expand(lead).flatten().clone(),
            state.remaining.expand(lead).flatten().clone(),
            state.context.expand(*lead, -1).flatten(0, 1).clone(),
        )

    def __getitem__(self, index: Tensor) -> Unfolding:
        """Pick rows."""
        return Unfolding(
            self.memory[index],
            self.entity[index],
            self.remaining[index],
            self.context[index],
        )

    def settled(self, steps: Steps, going_on: Tensor, place: Tensor) -> Unfolding:
        """Move the slots of the last tokens' entities *in place*; return the rows.

        A mention that goes on is worded by the slot that it has moved so far.

        Args:
            steps: Of the text.
            going_on: Which rows go on, (R,).
            place: The places of their next tokens, (R,).
        """
        (row,) = ((self.entity != NOBODY) & going_on).nonzero(as_tuple=True)
        place = place[row]
        entity = self.entity[row]
        memory = self.memory.widened(int(entity.max()) + 1 if len(row) else 0)
        slot = steps.moved(place, memory.slots[row, entity])
        memory = memory.write(row, entity, slot, steps.time[place] - steps.lag)
        inside = self.remaining[row] > 0
        self.context[row[inside]] = slot[inside]
        return replace(self, memory=memory)


def sample_chains(
    steps: Steps,
    state: EntityState,
    length: Tensor,
    uniforms: Uniforms,
    num_samples: int,
) -> tuple[Chains, Tensor]:
    """Draw chains from left to right; return them with log q, (B, K) float64.

    Every decision is drawn: whether there is a mention by the first random number of
    its token, of whom by the second, how long by the third.
    """
    batch, device = len(length), length.device
    walk = Unfolding.after(state, num_samples)
    text = torch.arange(batch, device=device).repeat_interleave(num_samples)
    found = length.new_zeros(2, len(text), steps.num_tokens)
    log_q = wide_zeros((len(text),), device)
    for t in range(steps.num_tokens):
        going_on, place = length[text] > t, text * steps.num_tokens + t
        walk = walk.settled(steps, going_on, place)
        memory, u = walk.memory, uniforms(t).flatten(0, 1)
        # Inside a mention there is nothing to decide.
        inside = going_on & (walk.remaining > 0)
        walk.entity.masked_fill_(~inside, NOBODY)
        walk.remaining.sub_(1).masked_fill_(~inside, 0)
        if steps.tilt is None:
            log_mention, tilted = steps.mention[place], None
        else:
            slots = memory.slots, memory.last, memory.count
            log_mention, tilted = steps.tilted(place, walk.context, *slots)
            log_mention = log_mention.log_softmax(-1)
        mention = invert_cdf(log_mention.exp(), u[:, 0])
        free = going_on & ~inside
        log_q += _chosen(log_mention, mention).masked_fill(~free, 0.0)
        (row,) = (free & (mention == 1)).nonzero(as_tuple=True)
        place, count = place[row], memory.count[row]
        if tilted is None:
            log_slot = steps.log_slot(place, memory.slots[row], memory.last[row], count)
        else:
            log_slot = tilted[row].log_softmax(-1)
        slot = invert_cdf(log_slot.exp(), u[row, 1])
        vector = memory.slots[row, slot]
        log_length = steps.log_length(place, vector)
        remaining = invert_cdf(log_length.exp(), u[row, 2])
        log_q[row] += _chosen(log_slot, slot) + _chosen(log_length, remaining)
        walk.entity[row] = torch.where(slot == 0, count + 1, slot)
        walk.remaining[row] = remaining
        walk.context[row] = vector
        found[0, :, t], found[1, :, t] = walk.entity, walk.remaining
    found = found.view(2, batch, num_samples, -1)
    return Chains(found[0], found[1]), log_q.view(batch, num_samples)


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
        Chains (B, width, T), their scores (B, width) with ``-inf`` where there is none,
        and which of the K chains so far each of them continues, (B, width). Exact if no
        text has more than ``width`` chains.
    """
    batch, num_tokens, device = len(length), steps.num_tokens, length.device
    texts = torch.arange(batch, device=device)[:, None]
    more = max(width - state.num_chains, 0)
    start = torch.arange(width, device=device).clamp_max(state.num_chains - 1)
    start = start.repeat(batch, 1)
    walk = Unfolding.after(state.resample(start), width)
    score = F.pad(score, (0, more), value=-torch.inf)[:, :width]
    came_from = start.new_zeros(num_tokens, batch, width)
    found = start.new_zeros(2, num_tokens, batch, width)
    for t in range(num_tokens):
        going_on = length > t
        there = ((score > -torch.inf) & going_on[:, None]).flatten()
        place = (texts * num_tokens + t).expand(-1, width).flatten()
        walk = walk.settled(steps, there, place)
        (row,) = there.nonzero(as_tuple=True)
        option = widened(log_options(steps, walk[row], place[row]))
        option = option + score.flatten()[row, None]
        total = option.new_full((batch * width, option.shape[1]), -torch.inf)
        total[row] = option
        owner, chosen, which, best = _best(total.view(batch, width, -1), width)
        rank = torch.arange(len(owner), device=device)
        rank = rank - torch.searchsorted(owner, owner)

        came_from[t] = torch.arange(width, device=device)
        came_from[t, owner, rank] = chosen
        walk = walk[(texts * width + came_from[t]).flatten()]
        _choose(walk, owner * width + rank, which, steps.length.shape[-1])
        found[0, t] = walk.entity.view(batch, width)
        found[1, t] = walk.remaining.view(batch, width)
        score = score.masked_fill(going_on[:, None], -torch.inf)
        score[owner, rank] = best
    # Walk back along the links.
    origin = torch.arange(width, device=device).repeat(batch, 1)
    result = start.new_zeros(2, batch, width, num_tokens)
    for t in reversed(range(num_tokens)):
        result[..., t] = found[:, t, texts, origin]
        origin = came_from[t, texts, origin]
    result = result.masked_fill((_places(num_tokens, length))[:, None], 0)
    return Chains(result[0], result[1]), score, start.gather(1, origin)


def log_options(steps: Steps, walk: Unfolding, place: Tensor) -> Tensor:
    """Return what a choice of z_t adds to the rank of a chain, (R, 1 + S * M) nats.

    Without a tilt it is log q(z_t), else log p(z_t) + log psi, which stands for that of
    the token; inside a mention nothing is decided, and only psi is left.

    Choice 0 is no mention or, inside one, its next token; choice 1 + s * M + l is a
    mention of slot s (0: a new entity) with l further tokens.
    """
    memory = walk.memory
    slots = memory.slots, memory.last, memory.count
    if steps.tilt is None:
        log_mention, log_slot = steps.mention[place], steps.log_slot(place, *slots)
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


def _choose(walk: Unfolding, row: Tensor, which: Tensor, num_lengths: int) -> None:
    """Apply choices of ``log_options`` to rows, *in place*."""
    inside = walk.remaining[row] > 0
    walk.remaining[row] -= inside.long()
    free, which = row[~inside], which[~inside]
    slot, remaining = (which - 1) // num_lengths, (which - 1) % num_lengths
    new = walk.memory.count[free] + 1
    begins = which > 0
    walk.entity[free] = torch.where(begins, torch.where(slot == 0, new, slot), NOBODY)
    walk.remaining[free] = torch.where(begins, remaining, 0)
    walk.context[free[begins]] = walk.memory.slots[free[begins], slot[begins]]


def _best(total: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return text, chain, choice and log q of the best, (N,), best first in a text.

    Ties go by the order of chains and choices, so they do not depend on the batch.
    """
    flat = total.flatten(1)
    rank = ranks(flat)
    least = rank.topk(min(width, flat.shape[1])).values[:, -1:]
    owner, option = ((rank >= least) & (flat > -torch.inf)).nonzero(as_tuple=True)
    order = rank[owner, option].argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    owner, option = owner[order], option[order]
    place = torch.arange(len(owner), device=owner.device)
    keep = place - torch.searchsorted(owner, owner) < width
    owner, option = owner[keep], option[keep]
    num_options = total.shape[-1]
    return owner, option // num_options, option % num_options, flat[owner, option]


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
