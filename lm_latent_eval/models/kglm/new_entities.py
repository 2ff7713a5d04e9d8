r"""Which entity a NEW mention names: a distribution over a whole entity table.

.. math:: p_{\mathrm{new}}(e) = \frac{[e \text{ may be introduced}] \, e^{s_{te}}}{Z_t}
    \cdot \frac{e^{b_t(e)}}{L_t}, \qquad
    L_t = e^{b_t(\mathrm{others})} \Bigl(1 - \sum_{e\ \mathrm{listed}}
    \frac{e^{s_{te}}}{Z_t}\Bigr)
    + \sum_{e\ \mathrm{listed}} \frac{e^{s_{te} + b_t(e)}}{Z_t}

The sum of Z_t runs over all E entities, ``scores.AT_ONCE`` numbers at a time; those of
the tilt's lift L_t only over the few that the tilt lists. What is asked for is computed
for the (position, entity) pairs asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Tilt
from lm_latent_eval.models.kglm.ragged import invert_cdf, segment_logsumexp
from lm_latent_eval.models.kglm.scores import EntityScores


@dataclass(frozen=True)
class NewEntities:
    """p_new at P positions."""

    scores: EntityScores
    graph: KnowledgeGraph
    introducible: Tensor
    """Rows of the entity table that may be introduced, (E,) bool."""
    tilt: Tilt | None

    @cached_property
    def possible(self) -> Tensor:
        """Whether any entity may be introduced, ()."""
        return self.introducible.any()

    @cached_property
    def log_z(self) -> Tensor:
        """Log Z, (P,); 0 if no entity may be introduced."""
        log_z = self.scores.hidden.new_zeros(len(self.scores.hidden))
        if self.possible:
            # Into one tensor: small results between large ones scatter the heap.
            for few in self.scores.few(torch.arange(len(log_z), device=log_z.device)):
                log_z[few] = self._masked_rows(few).logsumexp(-1)
        return log_z

    @cached_property
    def lift(self) -> Tensor:
        """Log L: what the tilt multiplies the mass of NEW mentions by, (P,)."""
        lift = torch.zeros_like(self.log_z)
        if self.tilt is None:
            return lift
        every = torch.arange(len(lift), device=lift.device)
        position, entity, tilt = self._tilted(every)
        log_plain = widened(self._log_plain(position, entity))
        listed = segment_logsumexp(log_plain + tilt, position, len(lift))
        plain = log_plain.exp()
        rest = 1 - plain.new_zeros(len(lift)).index_add(0, position, plain)
        unlisted = rest.clamp_min(0.0).log() + self.tilt.others
        return torch.logaddexp(unlisted, listed).to(lift)

    def log_prob(self, position: Tensor, entity: Tensor) -> Tensor:
        """Return log p_new of positions and entities in nats, elementwise, (n,)."""
        log_plain = self._log_plain(position, entity)
        if self.tilt is None:
            return log_plain
        node = self.graph.node_of_entity[entity]
        return log_plain + self.tilt.at(position, node) - self.lift[position]

    def log_probs(self, position: Tensor) -> Tensor:
        """Return log p_new of every entity at some positions in nats, (n, E)."""
        log_plain = self._masked_rows(position) - self.log_z[position, None]
        if self.tilt is None:
            return log_plain
        row, entity, tilt = self._tilted(position)
        others = self.tilt.others[position, None].expand_as(log_plain)
        tilted = log_plain + others.index_put((row, entity), tilt)
        return tilted - self.lift[position, None]

    def sample(self, position: Tensor, u: Tensor) -> Tensor:
        """Draw an entity at each position (non-decreasing), (n,), by inverting cdfs."""
        distinct, which = position.unique_consecutive(return_inverse=True)
        drawn, first = torch.empty_like(position), 0
        for few in self.scores.few(distinct):
            prob = self.log_probs(few).exp()
            row = torch.arange(len(few), device=u.device)
            mine = (which >= first) & (which < first + len(few))
            place = invert_cdf(
                prob.flatten(),
                row.repeat_interleave(prob.shape[1]),
                len(few),
                which[mine] - first,
                u[mine],
            )
            drawn[mine] = place % prob.shape[1]
            first += len(few)
        return drawn

    def top(self, position: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the most probable entities: log p_new and entity, (n, number) each."""
        number = min(number, self.scores.num_entities)
        distinct, which = torch.unique(position, return_inverse=True)
        best = [self.log_probs(few).topk(number) for few in self.scores.few(distinct)]
        log_prob, entity = (torch.cat(part)[which] for part in zip(*best, strict=True))
        return log_prob, entity

    def _log_plain(self, position: Tensor, entity: Tensor) -> Tensor:
        score = self.scores.at(position, entity) - self.log_z[position]
        return score.masked_fill(~self.introducible[entity], -torch.inf)

    def _masked_rows(self, position: Tensor) -> Tensor:
        return self.scores.rows(position).masked_fill(~self.introducible, -torch.inf)

    def _tilted(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the introducible entities that the tilt does: index, entity and tilt."""
        if self.tilt is None:
            raise ValueError("no tilt")
        row, node, tilt = self.tilt.entries(position)
        entity = self.graph.entity(node)
        own = (self.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
        own &= self.introducible[entity]
        return row[own], entity[own], tilt[own]
