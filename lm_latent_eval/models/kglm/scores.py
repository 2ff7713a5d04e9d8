"""Lazily computed logits of every decision of a walk.

A graph may have a million entities and a text thousands of positions, so scores of
(position, entity) pairs are kept as the vectors whose products they are. Positions and
entities are on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent

AT_ONCE = 1 << 21
"""Numbers of one kind (positions x entities, pairs x dimensions) held at a time."""


@dataclass(frozen=True)
class EntityScores:
    r"""Scores of E entities at P positions.

    .. math:: s_{te} = \alpha_t (h_t \cdot w_e + \beta_e)
    """

    hidden: Tensor
    """h, (P, d)."""
    weight: Tensor
    """w, (E, d)."""
    bias: Tensor | None = None
    r""":math:`\beta`, (E,); None is 0."""
    scale: Tensor | None = None
    r""":math:`\alpha`, (P,); None is 1."""

    @property
    def num_entities(self) -> int:
        """E."""
        return len(self.weight)

    def scaled(self, factor: Tensor | float) -> EntityScores:
        """Multiply by a number, or by one number a position (P,)."""
        ones = self.hidden.new_ones(len(self.hidden))
        return replace(
            self, scale=(ones if self.scale is None else self.scale) * factor
        )

    def select(self, position: Tensor) -> EntityScores:
        position = sent(position, self.hidden.device)
        scale = None if self.scale is None else self.scale[position]
        return replace(self, hidden=self.hidden[position], scale=scale)

    def at(self, position: Tensor, entity: Tensor) -> Tensor:
        """Return s of positions and entities, elementwise, (n,)."""
        position, entity = (sent(x, self.weight.device) for x in (position, entity))
        size = max(1, AT_ONCE // self.weight.shape[1])
        pairs = zip(position.split(size), entity.split(size), strict=True)
        score = torch.cat([(self.hidden[t] * self.weight[e]).sum(-1) for t, e in pairs])
        if self.bias is not None:
            score = score + self.bias[entity]
        return score if self.scale is None else score * self.scale[position]

    def rows(self, position: Tensor) -> Tensor:
        """Return s of every entity at some positions, (n, E)."""
        position = sent(position, self.weight.device)
        score = F.linear(self.hidden[position], self.weight, self.bias)
        return score if self.scale is None else score * self.scale[position, None]

    def few(self, position: Tensor) -> tuple[Tensor, ...]:
        """Cut positions into groups whose ``rows`` fit into memory."""
        groups: tuple[Tensor, ...] = position.split(
            max(1, AT_ONCE // self.num_entities)
        )
        return groups


@dataclass(frozen=True)
class StepScores:
    """Unnormalised log-probabilities of every decision at P = B * T positions."""

    mention: Tensor
    """Of mention types, (P, 4)."""
    new: EntityScores
    """Of the entities that a NEW mention may name."""
    parent: EntityScores
    """Of entities as parents of a DERIVED mention."""
    relation: Tensor
    """Of relations, (P, R)."""

    def select(self, position: Tensor) -> StepScores:
        there = sent(position, self.mention.device)
        return StepScores(
            self.mention[there],
            self.new.select(position),
            self.parent.select(position),
            self.relation[there],
        )

    def scaled(self, factor: Tensor | float) -> StepScores:
        """Multiply every score by a number."""
        return StepScores(
            self.mention * factor,
            self.new.scaled(factor),
            self.parent.scaled(factor),
            self.relation * factor,
        )
