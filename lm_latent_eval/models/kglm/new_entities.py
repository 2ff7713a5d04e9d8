r"""Distribution of NEW mentions over a whole entity table.

.. math:: p_{\mathrm{new}}(e) = \frac{[e \text{ may be introduced}] \, e^{s_{te}}}{Z_t}
    \cdot \frac{e^{b_t(e)}}{L_t}, \qquad
    L_t = e^{b_t(\mathrm{others})} \sum_{e\ \mathrm{unlisted}} \frac{e^{s_{te}}}{Z_t}
    + \sum_{e\ \mathrm{listed}} \frac{e^{s_{te} + b_t(e)}}{Z_t}

The sums of Z_t and of the twist's lift L_t share the one over the entities that the
twist does not list, ``scores.AT_ONCE`` numbers at a time; it lists few. What is asked
for is computed for the (position, entity) pairs asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import invert_cdf, segment_logsumexp
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Twist
from lm_latent_eval.models.kglm.scores import EntityScores


@dataclass(frozen=True)
class NewEntities:
    """p_new at P positions."""

    scores: EntityScores
    graph: KnowledgeGraph
    introducible: Tensor
    """Rows of the entity table that may be introduced, on the host, (E,) bool."""
    twist: Twist | None

    @cached_property
    def possible(self) -> bool:
        """Whether any entity may be introduced."""
        return bool(self.introducible.any())

    @cached_property
    def _impossible(self) -> Tensor:
        """Rows that may not, where the scores are, (E,) bool."""
        return sent(~self.introducible, self.scores.hidden.device)

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.scores.hidden.device)

    @property
    def log_z(self) -> Tensor:
        """Log Z, (P,); 0 if no entity may be introduced."""
        return self._log_sums[0]

    @property
    def lift(self) -> Tensor:
        """Log L: what the twist multiplies the mass of NEW mentions by, (P,)."""
        return self._log_sums[1]

    @cached_property
    def _log_sums(self) -> tuple[Tensor, Tensor]:
        """Log Z and log L.

        What the twist does not list is summed by itself: as what remains of 1 it would
        be lost in rounding where it is rare, and it may be what the twist favours.
        """
        count = len(self.scores.hidden)
        log_z = self.scores.hidden.new_zeros(count)
        if not self.possible:
            return log_z, log_z
        # Into one tensor: small results between large ones scatter the heap.
        for few in self.scores.few(torch.arange(count)):
            log_z[self._sent(few)] = self._unlisted_rows(few).logsumexp(-1)
        if self.twist is None:
            return log_z, torch.zeros_like(log_z)
        position, entity, twist = self._twisted(torch.arange(count))
        score, unlisted = widened(self.scores.at(position, entity)), widened(log_z)
        plain, twisted = (
            torch.logaddexp(rest, segment_logsumexp(listed, position, count))
            for rest, listed in [
                (unlisted, score),
                (unlisted + self.twist.others, score + twist),
            ]
        )
        return plain.to(log_z), (twisted - plain).to(log_z)

    def log_prob(self, position: Tensor, entity: Tensor) -> Tensor:
        """Return log p_new of positions and entities in nats, elementwise, (n,)."""
        log_plain = self._log_plain(position, entity)
        if self.twist is None:
            return log_plain
        node = self.graph.node_of_entity[entity]
        lift = self.lift[self._sent(position)]
        return log_plain + self.twist.at(position, node) - lift

    def log_probs(self, position: Tensor) -> Tensor:
        """Return log p_new of every entity at some positions in nats, (n, E)."""
        there = self._sent(position)
        log_plain = self._masked_rows(position) - self.log_z[there, None]
        if self.twist is None:
            return log_plain
        row, entity, twist = self._twisted(position)
        others = self.twist.others[there, None].expand_as(log_plain)
        index = (self._sent(row), self._sent(entity))
        twisted = log_plain + others.index_put(index, twist)
        return twisted - self.lift[there, None]

    def sample(self, position: Tensor, u: Tensor) -> Tensor:
        """Draw an entity at each position (non-decreasing), (n,), by inverting cdfs.

        The entities are where the scores are.
        """
        distinct, which = position.unique_consecutive(return_inverse=True)
        drawn, first = self._sent(torch.zeros_like(position)), 0
        for few in self.scores.few(distinct):
            prob = self.log_probs(few).exp()
            row = torch.arange(len(few)).repeat_interleave(prob.shape[1])
            (mine,) = ((which >= first) & (which < first + len(few))).nonzero(
                as_tuple=True
            )
            there, query = self._sent(mine), which[mine] - first
            place = invert_cdf(prob.flatten(), row, len(few), query, u[there])
            drawn = drawn.index_copy(0, there, place % prob.shape[1])
            first += len(few)
        return drawn

    def top(self, position: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the most probable entities: log p_new and entity, (n, number) each.

        Both are where the scores are.
        """
        number = min(number, self.scores.num_entities)
        distinct, which = torch.unique(position, return_inverse=True)
        best = [self.log_probs(few).topk(number) for few in self.scores.few(distinct)]
        which = self._sent(which)
        log_prob, entity = (torch.cat(part)[which] for part in zip(*best, strict=True))
        return log_prob, entity

    def _log_plain(self, position: Tensor, entity: Tensor) -> Tensor:
        score = self.scores.at(position, entity) - self.log_z[self._sent(position)]
        impossible = self._sent(~self.introducible[entity])
        return score.masked_fill(impossible, -torch.inf)

    def _masked_rows(self, position: Tensor) -> Tensor:
        return self.scores.rows(position).masked_fill(self._impossible, -torch.inf)

    def _unlisted_rows(self, position: Tensor) -> Tensor:
        """Leave out what the twist lists."""
        rows = self._masked_rows(position)
        if self.twist is not None:
            row, entity, _ = self._twisted(position)
            index = (self._sent(row), self._sent(entity))
            rows = rows.index_put(index, rows.new_full((), -torch.inf))
        return rows

    def _twisted(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the introducible entities of the twist: index, entity and twist."""
        if self.twist is None:
            raise ValueError("no twist")
        row, node, twist = self.twist.entries(position)
        entity = self.graph.entity(node)
        own = (self.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
        own &= self.introducible[entity]
        (own,) = own.nonzero(as_tuple=True)
        return row[own], entity[own], twist[self._sent(own)]
