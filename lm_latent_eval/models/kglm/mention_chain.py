"""The hidden Markov model of mentions that look-ahead sums over; see ``twisting``.

Backward sums are what the rest of a text is expected to cost after each state; forward
sums are how probable states are given the whole text, and how much more probable it
would be with other parents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.models.kglm.expected_parents import Derivations, ExpectedParents
from lm_latent_eval.models.kglm.latents import Mention
from lm_latent_eval.models.kglm.parent_gains import LEAST, Derivable

BEGUN = slice(Mention.NONE, Mention.CONTINUE)
"""Types of tokens that go on with nothing."""

LIKELIEST = 2
"""Last mentions that are looked at when there are other parents."""


@dataclass(frozen=True)
class Costs:
    """Log-probabilities of a batch under the S states of its texts, float64 nats.

    The states are those of ``Candidates`` and, last, a mention of any other node.
    """

    word: Tensor
    """log p(x_t | s), (B, T, S); ``-inf`` of states that a text does not have."""
    new: Tensor
    """log p_new(s), (B, T, S); ``-inf`` of no mention."""
    derived: Tensor
    """log 1/C of candidates, (B, S); ``-inf`` of other states."""
    mention: Tensor
    """Mention types after a mention, (B, T, 4)."""
    after_none: Tensor
    """Mention types after no mention, where nothing can be continued, (B, T, 4)."""
    first: Tensor
    """And where nothing was mentioned yet to derive from, (B, T, 4)."""

    def repeated(self, number: int) -> Costs:
        """Repeat the batch."""
        parts = (getattr(self, field.name) for field in fields(self))
        return Costs(*(torch.cat([part] * number) for part in parts))

    def types(self, t: int) -> tuple[Tensor, Tensor]:
        """Return mention types after a mention of each state and none, (4, B, S)."""
        mention, none, first = (
            types[:, t].mT[..., None].expand(-1, -1, self.word.shape[2])
            for types in (self.mention, self.after_none, self.first)
        )
        return mention, torch.cat([first[..., :1], none[..., 1:]], -1)


class Ahead(NamedTuple):
    """log psi or log beta of every token and state, nats, (B, T, S) each."""

    mention: Tensor
    """A mention of each state; ``-inf`` of the first, which is none."""
    none: Tensor
    """No mention, after a last one of each state; of the first, after none."""


def backward(
    costs: Costs, length: Tensor, parents: ExpectedParents
) -> tuple[Ahead, Ahead]:
    """Return log psi and log beta."""
    nobody = torch.zeros_like(costs.derived[:1], dtype=torch.bool)
    nobody[:, 0] = True
    ahead = [torch.zeros_like(costs.derived) for _ in range(2)]
    found: list[tuple[Tensor, ...]] = [(costs.word[:, :0],) * 4]
    for t in reversed(range(costs.word.shape[1])):
        mention = (costs.word[:, t] + ahead[0]).masked_fill(nobody, -torch.inf)
        none = costs.word[:, t, :1] + ahead[1]
        new = (costs.new[:, t] + mention).logsumexp(-1, True)
        alike = (costs.derived + mention).logsumexp(-1, True)
        derived = parents.log_derived(t, mention, alike)
        begun = torch.stack(torch.broadcast_tensors(none, new, derived))
        going_on = costs.mention[:, t, Mention.CONTINUE, None] + mention
        for n, types in enumerate(costs.types(t)):
            value = (types[BEGUN] + begun).logsumexp(0)
            if n == 0:
                value = torch.logaddexp(going_on, value)
            ahead[n] = torch.where((length > t)[:, None], value, ahead[n])
        found.append((mention[:, None], none[:, None], *[x[:, None] for x in ahead]))
    mention, none, *ahead = (
        torch.cat(part, 1) for part in zip(*reversed(found), strict=True)
    )
    return Ahead(mention, none), Ahead(*ahead)


class Reading(NamedTuple):
    """What a chain with parents says of one token, given the whole text."""

    begun: Tensor
    """The probability that a mention of each state begins, (B, S)."""
    deriving: Tensor
    """That something is derived after a last mention of each state, over what that is
    worth, (B, S)."""
    derived: Derivations


def beginnings(
    costs: Costs, parents: ExpectedParents, psi: Ahead, beta: Ahead
) -> Tensor:
    """Return how probable it is that a mention of a state begins at t, (B, T, S)."""
    begun = torch.empty_like(costs.word)
    for t, reading in enumerate(forward(costs, parents, psi, beta)):
        begun[:, t] = reading.begun
    return begun


def forward(
    costs: Costs, parents: ExpectedParents, psi: Ahead, beta: Ahead
) -> Iterator[Reading]:
    """Read a text from left to right by the chain with parents, token by token."""
    log_none = torch.full_like(costs.derived, -torch.inf)
    log_none[:, 0] = 0.0
    log_mention = torch.full_like(costs.derived, -torch.inf)
    candidate = costs.derived.exp()
    for t in range(costs.word.shape[1]):
        # Of every state before t: its probability, less what was expected after it.
        none = _less(log_none, beta.none[:, t])
        mention = _less(log_mention, beta.mention[:, t])
        after_mention, after_none = costs.types(t)
        types = torch.logaddexp(none + after_none, mention + after_mention)
        ahead = psi.mention[:, t]
        peak = ahead.amax(-1, True)
        peak = peak.masked_fill(peak.isneginf(), 0.0)
        worth = (ahead - peak).exp()
        derived = parents.derived(t, worth, (candidate * worth).sum(-1, True))
        deriving = (types[Mention.DERIVED] + peak).exp()
        listed, alike = parents.reached(t, deriving, derived)
        new = types[Mention.NEW].logsumexp(-1, True) + costs.new[:, t] + ahead
        beginning = new.logaddexp(((listed + alike * candidate) * worth).log())
        yield Reading(beginning.exp(), deriving, derived)
        going_on = mention + costs.mention[:, t, Mention.CONTINUE, None]
        log_none = types[Mention.NONE] + psi.none[:, t]
        log_mention = beginning.logaddexp(going_on + ahead)


def log_absent(begun: Tensor) -> Tensor:
    """Return log p that no mention of a state begins before t, (B, T + 1, S).

    What begins at several tokens is taken to be independent.
    """
    return F.pad((1 - begun).clamp_min(LEAST).log().cumsum(1), (0, 0, 1, 0))


def recent_mentions(absent: Tensor, cutoff: int) -> Tensor:
    """Return how probable a mention in the ``cutoff`` tokens before t is, (B, T, S)."""
    before = F.pad(absent, (0, 0, cutoff, 0))[:, : -cutoff - 1]
    return -torch.expm1(absent[:, :-1] - before)


def _less(value: Tensor, expected: Tensor) -> Tensor:
    """Subtract logarithms, both of which may be ``-inf``."""
    return value - expected.masked_fill(expected.isneginf(), 0.0)


def derivable_tokens(
    costs: Costs, parents: ExpectedParents, psi: Ahead, beta: Ahead
) -> tuple[Tensor, Derivable]:
    """Return what ``beginnings`` does, and what other parents would change."""
    batch, num_tokens, num_states = costs.word.shape
    number = min(LIKELIEST, num_states)
    sizes = (), (number,), (number,), (num_states,), (num_states,), (2,)
    begun = torch.empty_like(costs.word)
    found = [costs.word.new_empty(batch, num_tokens, *size) for size in sizes]
    found[2] = found[2].long()
    for t, reading in enumerate(forward(costs, parents, psi, beta)):
        derived = reading.derived
        mass, last = reading.deriving.topk(number, sorted=False)
        by_chain = (mass * derived.value.gather(1, last)).sum(-1)
        unknown = derived.unknown.expand_as(derived.alike)
        values = (
            (1 - by_chain).clamp_min(0.0),
            mass,
            last,
            derived.weight,
            derived.paid,
            torch.cat([unknown * derived.alike, unknown], -1),
        )
        for part, value in zip(found, values, strict=True):
            part[:, t] = value
        begun[:, t] = reading.begun
    weight, paid = found[3:5]
    found.append(paid.masked_fill(weight <= 0, 0.0).amax(-1))
    return begun, Derivable(*found)
