r"""Distribution of one step of an entity chain, p(z_t | z_<t, x).

z_t = (entity, remaining) of token t: entity 0 is no mention, entities are numbered by
their first mention, and ``remaining`` counts the further tokens of the mention. Inside
a mention z_t is determined; elsewhere

.. math::
    p(z_t) = p(r_t \mid h) \, [\, p(e_t \mid h, \text{slots}) \,
             p(l_t \mid h, s_{e_t}) \,]^{r_t}

.. math::
    p(r) \propto e^{R_r h}, \qquad
    p(e) \propto e^{h^\top W_e s_e + \lambda (t - t_e)}, \qquad
    p(l) \propto e^{(W_l [h; s_e] + b)_l}

A slot s_e follows its entity: it begins as the direction of R_1, and every token of a
mention moves it towards the hidden state,

.. math::
    s_e \leftarrow \mathrm{normalize}(d s_e + (1 - d) u), \qquad
    d = \sigma(u^\top W_d s_e)

Slot 0 stays as it began and stands for the entity that has not been mentioned yet.

The generative model, every proposal and the prior are this one distribution over
different hidden states (``Steps``). The adapted proposal twists that of p by psi(g),
what p says of the token at hand if its context is g (``twist``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NOBODY = 0
"""The entity of a token that mentions none."""
SHORTEST = 1e-12
"""A slot that was shorter is divided by this instead of by its length."""


class Chains(NamedTuple):
    """Latents of a batch: B texts, K chains each, T tokens."""

    entity: Tensor
    """Entities by first mention from 1, 0 where nothing is mentioned, (B, K, T)."""
    remaining: Tensor
    """Tokens of the mention after this one, 0 where there is none, (B, K, T)."""


@dataclass(frozen=True)
class Steps:
    """All that a step needs to know of a text, at P = B * T flat places.

    A row is one decision: its place, and the slots of the chain that it belongs to.
    Rows of one place lie together, as many of each, so that places are told once.
    """

    mention: Tensor
    """log p(r_t), (P, 2) nats."""
    query: Tensor
    """What slots are multiplied with for p(e_t), (P, D)."""
    length: Tensor
    """The part of the length scores that no entity changes, (P, M)."""
    length_weight: Tensor
    """(M, D)."""
    distance: Tensor
    """lambda, ()."""
    update: Tensor
    """u, towards which the entity of the token *before* the place moves, (P, D)."""
    update_query: Tensor
    """What a slot is multiplied with for d, (P, D)."""
    time: Tensor
    """When the decision falls, in tokens from the beginning, (P,)."""
    lag: int
    """How much earlier u was read."""
    num_tokens: int
    """T."""
    twist: Callable[[Tensor, Tensor], Tensor] | None
    """log psi: places (R,) and their contexts (R, N, D) -> nats (R, N)."""

    def scaled(self, factor: float) -> Steps:
        """Multiply the scores of decisions, and log psi, by a number."""
        log_psi = self.twist
        return replace(
            self,
            mention=(self.mention * factor).log_softmax(-1),
            query=self.query * factor,
            length=self.length * factor,
            length_weight=self.length_weight * factor,
            distance=self.distance * factor,
            twist=log_psi
            and (lambda place, contexts: log_psi(place, contexts) * factor),
        )

    def twisted(
        self, place: Tensor, context: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""Return what q(r_t) and q(e_t) are proportional to if there is a twist.

        .. math::
            q(r_t = 0) \propto p(r_t = 0) \, \psi(g), \qquad
            q(r_t = 1) \propto p(r_t = 1) \sum_e p(e_t = e) \, \psi(s_e)

        The sum of both stands for p(x_t | z_<t, x_<t).

        Args:
            place: Of R decisions or of each R / N of them, (N,).
            context: g, by which a token outside mentions is worded, (R, D).
            slots: Their slots, (R, S, D).
            last: When each slot moved last, (R, S).
            count: Entities so far, (R,).

        Returns:
            Nats, (R, 2) and (R, S).
        """
        score = self._slot_score(place, slots, last, count)
        twisted = score + self._log_psi(place, slots)
        none = self.log_psi(place, context)
        some = twisted.logsumexp(-1) - score.logsumexp(-1)
        mention = self.log_mention(place, len(slots))
        return mention + torch.stack([none, some], -1), twisted

    def log_mention(self, place: Tensor, num_rows: int) -> Tensor:
        """Return log p(r_t) without a twist, (N,) -> (R, 2) nats."""
        return _each(self.mention[place], num_rows)

    def log_slot(
        self, place: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        """Return log p(e_t) over slots, 0 being a new entity; twisted by psi(s_e).

        Args:
            place: Of R decisions or of each R / N of them, (N,).
            slots: Their slots, (R, S, D).
            last: When each slot moved last, (R, S).
            count: Entities so far, (R,); slots beyond are excluded.

        Returns:
            Nats, (R, S).
        """
        score = self._slot_score(place, slots, last, count)
        return (score + self._log_psi(place, slots)).log_softmax(-1)

    def _slot_score(
        self, place: Tensor, slots: Tensor, last: Tensor, count: Tensor
    ) -> Tensor:
        score = (_by_place(slots, place) @ self.query[place][..., None]).view(
            last.shape
        )
        time = _each(self.time[place], len(last))[:, None]
        score = score + self.distance * (time - last)
        beyond = torch.arange(slots.shape[1], device=place.device) > count[:, None]
        return score.masked_fill(beyond, -torch.inf)

    def log_psi(self, place: Tensor, context: Tensor) -> Tensor:
        """Return log psi of one context a decision, (N,), (R, D) -> (R,)."""
        return self._log_psi(place, context[:, None])[:, 0]

    def _log_psi(self, place: Tensor, contexts: Tensor) -> Tensor:
        """Return log psi of contexts, (N,), (R, C, D) -> (R, C); 0 without a twist."""
        if self.twist is None:
            return contexts.new_zeros(())
        return self.twist(place, _by_place(contexts, place)).view(contexts.shape[:2])

    def log_length(self, place: Tensor, slot: Tensor) -> Tensor:
        """Return log p(l_t) given the entity's slot, (N,), (R, .., D) -> (R, .., M)."""
        text = _each(self.length[place], len(slot))
        text = text.view(len(text), *[1] * (slot.ndim - 2), text.shape[-1])
        return (text + F.linear(slot, self.length_weight)).log_softmax(-1)

    def moved(self, place: Tensor, slot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Move the slots of entities that were mentioned before the place.

        Returns:
            The new slots, (R, D), and what they are sums of, (R, 1) each:
            :math:`\text{kept} \cdot s_e + \text{added} \cdot u`.
        """
        d = (self.update_query[place] * slot).sum(-1, keepdim=True).sigmoid()
        moved = d * slot + (1 - d) * self.update[place]
        norm = moved.norm(dim=-1, keepdim=True).clamp_min(SHORTEST)
        return moved / norm, d / norm, (1 - d) / norm


def _each(value: Tensor, num_rows: int) -> Tensor:
    """Repeat the values of N places for the rows of each, (N, ..) -> (R, ..)."""
    return value.repeat_interleave(num_rows // max(1, len(value)), 0)


def _by_place(vectors: Tensor, place: Tensor) -> Tensor:
    """Put the vectors of all rows of a place side by side, (R, S, D) -> (N, ., D)."""
    rows, some, size = vectors.shape
    return vectors.reshape(len(place), rows * some // max(1, len(place)), size)
