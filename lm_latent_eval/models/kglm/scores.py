"""Scores of a walk's decisions, and the distributions over entities and edges.

A graph may have a million entities and a text thousands of positions, so scores of
(position, entity) pairs are kept as the vectors whose products they are, and what is
asked for is computed for the (position, entity) pairs asked for. Positions, entities
and edges are on the host; no table has a column an edge. A twist b_t(n) multiplies the
probability of node n at position t by e^{b_t(n)}.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    in_groups,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph

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

    def tables(self, entity: Tensor) -> Tensor:
        """Return s of some entities of each of B texts, (B, n) -> (B, P / B, n)."""
        hidden = self.hidden.unflatten(0, (len(entity), -1))
        entity = sent(entity, self.weight.device)
        score: Tensor = hidden @ self.weight[entity].mT
        if self.bias is not None:
            score = score + self.bias[entity][:, None]
        if self.scale is None:
            return score
        return score * self.scale.view(*score.shape[:2], 1)

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
    """Scores of mention types, (P, 4)."""
    new: EntityScores
    """Scores of the entities that a NEW mention may name."""
    parent: EntityScores
    """Scores of entities as parents of a DERIVED mention."""
    relation: Tensor
    """Scores of relations, (P, R)."""

    def select(self, position: Tensor) -> StepScores:
        there = sent(position, self.mention.device)
        return StepScores(
            self.mention[there],
            self.new.select(position),
            self.parent.select(position),
            self.relation[there],
        )

    def scaled(self, factor: float) -> StepScores:
        """Multiply every score by a number."""
        return StepScores(
            self.mention * factor,
            self.new.scaled(factor),
            self.parent.scaled(factor),
            self.relation * factor,
        )


@dataclass(frozen=True)
class Twist:
    """b_t(node) at P positions: of the nodes that are listed, and 0 of all others.

    Which are listed is known on the host, where positions and nodes are.
    """

    key: Tensor
    """position * N + node, increasing, and P * N at the end, on the host, (M + 1,)."""
    value: Tensor
    """Nats, and 0 at the end, (M + 1,)."""
    num_nodes: int
    """N."""

    @classmethod
    def largest(
        cls,
        position: Tensor,
        node: Tensor,
        score: Tensor,
        *,
        num_positions: int,
        num_nodes: int,
    ) -> Twist:
        """Take the largest score of each (position, node), and 0 if all are lower."""
        end = position.new_tensor([num_positions * num_nodes])
        key, which = torch.unique(
            torch.cat([position * num_nodes + node, end]), return_inverse=True
        )
        score, which = torch.cat([score, score.new_zeros(1)]), sent(which, score.device)
        value = score.new_zeros(len(key)).scatter_reduce(0, which, score, "amax")
        return cls(key, value, num_nodes)

    def scaled(self, factor: float) -> Twist:
        return replace(self, value=self.value * factor)

    def at(self, position: Tensor, node: Tensor) -> Tensor:
        """Return b of positions and nodes, elementwise."""
        key = position * self.num_nodes + node
        place = torch.searchsorted(self.key, key)
        place = torch.where(self.key[place] == key, place, len(self.key) - 1)
        return self.value[sent(place, self.value.device)]

    def entries(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the listed nodes of some positions: index into them, node and value."""
        low = position * self.num_nodes
        entry, row = expand_ranges(
            torch.searchsorted(self.key, low),
            torch.searchsorted(self.key, low + self.num_nodes),
        )
        value = self.value[sent(entry, self.value.device)]
        return row, self.key[entry] % self.num_nodes, value


@dataclass(frozen=True)
class NewEntities:
    r"""p_new at P positions.

    .. math::
        p_{\mathrm{new}}(e) = \frac{[e \text{ may be introduced}] \, e^{s_{te}}}{Z_t}
        \cdot \frac{e^{b_t(e)}}{L_t}, \qquad
        L_t = \sum_{e\ \mathrm{unlisted}} \frac{e^{s_{te}}}{Z_t}
        + \sum_{e\ \mathrm{listed}} \frac{e^{s_{te} + b_t(e)}}{Z_t}

    The sums of Z_t and of the twist's lift L_t share the one over the entities that the
    twist does not list, ``AT_ONCE`` numbers at a time; it lists few.
    """

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
            rows = self.masked_rows(few)
            if self.twist is not None:
                row, entity, _ = self._twisted(few)
                index = (self._sent(row), self._sent(entity))
                rows = rows.index_put(index, rows.new_full((), -torch.inf))
            log_z[self._sent(few)] = rows.logsumexp(-1)
        if self.twist is None:
            return log_z, torch.zeros_like(log_z)
        position, entity, twist = self._twisted(torch.arange(count))
        score, unlisted = widened(self.scores.at(position, entity)), widened(log_z)
        plain, twisted = (
            torch.logaddexp(rest, segment_logsumexp(listed, position, count))
            for rest, listed in [
                (unlisted, score),
                (unlisted, score + twist),
            ]
        )
        return plain.to(log_z), (twisted - plain).to(log_z)

    def log_prob(self, position: Tensor, entity: Tensor) -> Tensor:
        """Return log p_new of positions and entities in nats, elementwise, (n,)."""
        log_plain = self.scores.at(position, entity) - self.log_z[self._sent(position)]
        impossible = self._sent(~self.introducible[entity])
        log_plain = log_plain.masked_fill(impossible, -torch.inf)
        if self.twist is None:
            return log_plain
        node = self.graph.node_of_entity[entity]
        lift = self.lift[self._sent(position)]
        return log_plain + self.twist.at(position, node) - lift

    def log_probs(self, position: Tensor) -> Tensor:
        """Return log p_new of every entity at some positions in nats, (n, E)."""
        there = self._sent(position)
        log_plain = self.masked_rows(position) - self.log_z[there, None]
        if self.twist is None:
            return log_plain
        row, entity, twist = self._twisted(position)
        others = torch.zeros_like(log_plain)
        index = (self._sent(row), self._sent(entity))
        twisted = log_plain + others.index_put(index, twist)
        return twisted - self.lift[there, None]

    def rest(
        self, position: Tensor, listed: Tensor, number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Look at the entities that are not listed, without a twist.

        Args:
            position: Positions of B texts, as many of each, (P,).
            listed: Rows of the entity table of each text, on the host, (B, n).
            number: Of the most probable of the others.

        Returns:
            Log of the probability of all others, (P,); log of the share of each of the
            most probable among these, and the entities, (P, number). All are where the
            scores are.
        """
        number = min(number, self.scores.num_entities)
        text = position // max(1, len(position) // max(1, len(listed)))
        parts = []
        for few in self.scores.few(position):
            rows = self.masked_rows(few)
            rows = rows.scatter(1, self._sent(listed[text[few]]), -torch.inf)
            score, entity = rows.topk(number)
            share = (score - score.logsumexp(-1, True)).nan_to_num(-torch.inf)
            log_z = self.log_z[self._sent(few)]
            parts.append((rows.logsumexp(-1) - log_z, share, entity))
        log_rest, share, entity = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_rest, share, entity

    def masked_rows(self, position: Tensor) -> Tensor:
        """Return scores of all entities at some positions, (n, E); -inf: impossible."""
        return self.scores.rows(position).masked_fill(self._impossible, -torch.inf)

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


@dataclass(frozen=True)
class ParentEdges:
    r"""p(edge | parent) at P positions; parents are rows of the entity table.

    .. math::
        p(\mathrm{edge} \mid c) \propto e^{s_t(\mathrm{relation}) + b_t(\mathrm{tail})}

    over the edges that leave c, b being the twist. Edges are listed for the (position,
    parent) pairs asked for.
    """

    relation: Tensor
    """Scores of relations, (P, R)."""
    graph: KnowledgeGraph
    twist: Twist | None

    def log_prob(self, position: Tensor, parent: Tensor, node: Tensor) -> Tensor:
        """Return log of the summed probability of the edges parent -> node, (N,)."""
        head = self.graph.node_of_entity[parent]
        edge, pair = expand_ranges(*self.graph.edges_between(head, node))
        there = segment_logsumexp(self._scores(position[pair], edge), pair, len(head))
        log_z, _ = self.log_sums(position, parent)
        return there - log_z.masked_fill(log_z.isneginf(), 0.0)

    def log_sums(self, position: Tensor, parent: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the edges of (position, parent): with and without the twist, (n,).

        Distinct pairs are summed once, as many at a time as have few edges together.
        """
        distinct, which = self._distinct(position, parent)
        start, end = self._range(distinct[1])
        twisted, plain = [], []
        for t, first, last in in_groups(
            (distinct[0], start, end), end - start, AT_ONCE
        ):
            edge, pair = expand_ranges(first, last)
            twisted.append(segment_logsumexp(self._scores(t[pair], edge), pair, len(t)))
            if self.twist is not None:
                score = self._plain(t[pair], edge)
                plain.append(segment_logsumexp(score, pair, len(t)))
        which = sent(which, self.relation.device)
        log_z = torch.cat(twisted)[which]
        return log_z, torch.cat(plain)[which] if plain else log_z

    def every(self, position: Tensor, parent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the edges of (position, parent): tail, log-probability and pair.

        Those of distinct pairs are scored once.
        """
        (t, c), which = self._distinct(position, parent)
        edge, pair = expand_ranges(*self._range(c))
        score = self._scores(t[pair], edge)
        log_z = segment_logsumexp(score, pair, len(t))
        log_prob = score - log_z[sent(pair, score.device)]
        count = torch.bincount(pair, minlength=len(t))
        end = count.cumsum(0)
        listed, row = expand_ranges((end - count)[which], end[which])
        tail = self.graph.tail(edge)[listed]
        return tail, log_prob[sent(listed, log_prob.device)], row

    def _distinct(
        self, position: Tensor, parent: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        *distinct, which = distinct_pairs(
            position, parent, len(self.graph.node_of_entity)
        )
        return (distinct[0], distinct[1]), which

    def _range(self, parent: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.graph.edge_range(self.graph.node_of_entity[parent])
        return start, torch.where(self.graph.has_edges[parent], end, start)

    def _scores(self, position: Tensor, edge: Tensor) -> Tensor:
        score = self._plain(position, edge)
        if self.twist is not None:
            score = score + self.twist.at(position, self.graph.tail(edge))
        return score

    def _plain(self, position: Tensor, edge: Tensor) -> Tensor:
        index = (position, self.graph.relation(edge))
        there, relation = (sent(x, self.relation.device) for x in index)
        return self.relation[there, relation]
