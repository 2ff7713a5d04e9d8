r"""Which edge of its parent leads to a DERIVED mention.

.. math::
    p(\mathrm{edge} \mid c) \propto e^{s_t(\mathrm{relation}) + b_t(\mathrm{tail})}

over the edges that leave c, b being the tilt. Edges are listed for the (position,
parent) pairs asked for, on the host; no table has a column an edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Tilt
from lm_latent_eval.models.kglm.ragged import (
    distinct_pairs,
    expand_ranges,
    in_groups,
    invert_cdf,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.scores import AT_ONCE


@dataclass(frozen=True)
class ListedEdges:
    """All edges of n (position, parent) pairs, those of equal pairs once."""

    which: Tensor
    """Which of D distinct pairs each pair is, on the host, (n,)."""
    end: Tensor
    """Where the edges of each distinct pair end, on the host, (D,)."""
    tail: Tensor
    """The nodes that edges lead to, on the host, (N,)."""
    log_prob: Tensor
    """log p(edge | parent) in nats, (N,)."""
    log_sums: tuple[Tensor, Tensor]
    """Of the n pairs, see ``ParentEdges``."""

    def of(self, pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the edges of some of the n pairs, on the host, one pair after another.

        Returns:
            The tail of each edge, its log-probability, and its place among ``pairs``.
        """
        which = self.which[pairs]
        edge, row = expand_ranges(F.pad(self.end, (1, 0))[which], self.end[which])
        return self.tail[edge], self.log_prob[sent(edge, self.log_prob.device)], row

    def sample(self, pairs: Tensor, u: Tensor) -> Tensor:
        """Draw an edge of some of the n pairs, (m,): which of the N.

        Args:
            pairs: Where the scores are, (m,).
            u: A number in (0, 1) each, there, (m,).
        """
        num_pairs = len(self.end)
        count = self.end.diff(prepend=self.end.new_zeros(1))
        row = torch.arange(num_pairs).repeat_interleave(count)
        which = sent(self.which, pairs.device)[pairs]
        return invert_cdf(self.log_prob.exp(), row, num_pairs, which, u)


@dataclass(frozen=True)
class ParentEdges:
    """p(edge | parent) at P positions; parents are rows of the entity table."""

    relation: Tensor
    """Scores of relations, (P, R)."""
    graph: KnowledgeGraph
    tilt: Tilt | None

    def log_prob(self, position: Tensor, parent: Tensor, node: Tensor) -> Tensor:
        """Return log of the summed probability of the edges parent -> node, (N,)."""
        head = self.graph.node_of_entity[parent]
        edge, pair = expand_ranges(*self.graph.edges_between(head, node))
        _, score = self._scores(position[pair], edge)
        there = segment_logsumexp(score, pair, len(head))
        log_z, _ = self.log_sums(position, parent)
        return there - log_z.masked_fill(log_z.isneginf(), 0.0)

    def log_sums(self, position: Tensor, parent: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the edges of (position, parent): with and without the tilt, (n,).

        Distinct pairs are summed once, as many at a time as have few edges together.
        """
        distinct, which = self._distinct(position, parent)
        groups = [sums for *_, sums in self._groups(*distinct)]
        which = sent(which, self.relation.device)
        tilted, plain = (torch.cat(part)[which] for part in zip(*groups, strict=True))
        return tilted, plain

    def listed(self, position: Tensor, parent: Tensor) -> ListedEdges:
        """List the edges of (position, parent)."""
        (t, c), which = self._distinct(position, parent)
        start, end = self._range(c)
        tails, log_probs, groups = [], [], []
        for edge, pair, score, sums in self._groups(t, c):
            tails.append(self.graph.tail(edge))
            log_probs.append(score - sums[0][sent(pair, score.device)])
            groups.append(sums)
        there = sent(which, self.relation.device)
        tilted, plain = (torch.cat(part)[there] for part in zip(*groups, strict=True))
        return ListedEdges(
            which,
            (end - start).cumsum(0),
            torch.cat(tails),
            torch.cat(log_probs),
            (tilted, plain),
        )

    def _groups(
        self, position: Tensor, parent: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]]:
        """Score the edges of pairs, as many pairs at a time as have few together.

        Yields:
            Edges, which of these pairs each is of, their scores, and the ``log_sums``
            of these pairs.
        """
        start, end = self._range(parent)
        columns = position, start, end
        for t, first, last in in_groups(columns, end - start, AT_ONCE):
            edge, pair = expand_ranges(first, last)
            plain, tilted = self._scores(t[pair], edge)
            log_z = segment_logsumexp(tilted, pair, len(t))
            untilted = (
                log_z if self.tilt is None else segment_logsumexp(plain, pair, len(t))
            )
            yield edge, pair, tilted, (log_z, untilted)

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

    def _scores(self, position: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of edges without and with the tilt, (N,) each."""
        index = (position, self.graph.relation(edge))
        there, relation = (sent(x, self.relation.device) for x in index)
        plain = self.relation[there, relation]
        if self.tilt is None:
            return plain, plain
        return plain, plain + self.tilt.at(position, self.graph.tail(edge))
