r"""Distribution over the edges from a parent to a DERIVED mention.

.. math::
    p(\mathrm{edge} \mid c) \propto e^{s_t(\mathrm{relation}) + b_t(\mathrm{tail})}

over the edges that leave c, b being the twist. Edges are listed for the (position,
parent) pairs asked for, on the host; no table has a column an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    in_groups,
    invert_cdf,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Twist
from lm_latent_eval.models.kglm.scores import AT_ONCE


@dataclass(frozen=True)
class ParentEdges:
    """p(edge | parent) at P positions; parents are rows of the entity table."""

    relation: Tensor
    """Scores of relations, (P, R)."""
    graph: KnowledgeGraph
    twist: Twist | None

    def select(self, position: Tensor) -> ParentEdges:
        return replace(
            self,
            relation=self.relation[sent(position, self.relation.device)],
            twist=None if self.twist is None else self.twist.select(position),
        )

    def fetched_with(self, *others: Tensor) -> tuple[ParentEdges, list[Tensor]]:
        """Copy the scores to the host, and others in the same wait for a device."""
        if self.twist is None:
            relation, *rest = fetched(self.relation, *others)
            return replace(self, relation=relation), rest
        relation, value, rest_of_nodes, *rest = fetched(
            self.relation, self.twist.value, self.twist.others, *others
        )
        twist = replace(self.twist, value=value, others=rest_of_nodes)
        return replace(self, relation=relation, twist=twist), rest

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
        tail, log_prob, pair = self._every(t, c)
        count = torch.bincount(pair, minlength=len(t))
        end = count.cumsum(0)
        listed, row = expand_ranges((end - count)[which], end[which])
        return tail[listed], log_prob[sent(listed, log_prob.device)], row

    def sample(
        self, position: Tensor, parent: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw an edge of each (position, parent).

        Returns:
            Which of the edges that are listed were drawn, (n,), where the scores are,
            and the tails of those listed.
        """
        distinct, which = self._distinct(position, parent)
        start, end = self._range(distinct[1])
        drawn, tails = torch.zeros_like(position), []
        drawn, first, listed = sent(drawn, u.device), 0, 0
        for t, c in in_groups(distinct, end - start, AT_ONCE):
            tail, log_prob, pair = self._every(t, c)
            (mine,) = ((which >= first) & (which < first + len(t))).nonzero(
                as_tuple=True
            )
            there, query = sent(mine, u.device), which[mine] - first
            edge = invert_cdf(log_prob.exp(), pair, len(t), query, u[there])
            drawn = drawn.index_copy(0, there, edge + listed)
            tails.append(tail)
            first, listed = first + len(t), listed + len(tail)
        return drawn, torch.cat(tails)

    def _every(self, position: Tensor, parent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edge, pair = expand_ranges(*self._range(parent))
        score = self._scores(position[pair], edge)
        log_z = segment_logsumexp(score, pair, len(position))
        return self.graph.tail(edge), score - log_z[sent(pair, score.device)], pair

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
