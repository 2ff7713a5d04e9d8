r"""How the text walks through the graph: the distribution of z_t given z_<t.

z_t = (mention type, node) of token t:

* ``NONE``: the token mentions nothing, node 0;
* ``NEW``: it begins a mention of an entity taken from the whole vocabulary;
* ``DERIVED``: it begins a mention of a node reached by an edge from a recent entity;
* ``CONTINUE``: it goes on with the mention of the token before.

.. math::
    p(z_t) = p(m_t) \cdot \begin{cases}
      p_{\mathrm{new}}(e_t) & m_t = \mathrm{NEW} \\
      \sum_{c \in \mathrm{recent}} p(c) \sum_{c \to e_t} p(\mathrm{edge} \mid c)
        & m_t = \mathrm{DERIVED} \\
      [e_t = e_{t-1}] & m_t = \mathrm{CONTINUE} \end{cases}

The parent c and the relation are summed out: they influence nothing later, so the sum
is exact, and a sampled weight that need not carry them varies less.

The generative model, every proposal and the prior are this one distribution over
different scores. ``only_possible`` says whether choices that cannot lead anywhere (a
derived mention without a recent parent, a continuation of nothing, special rows of the
entity table) are excluded before normalising, as proposals and newly trained models do,
or keep their share of the mass, as in the original generative model.

A distribution may be tilted towards nodes that the text speaks for:

.. math:: p'(z_t) \propto p(z_t) \, e^{b_t(e_t)}, \qquad b_t(\text{no entity}) = 0

with every sum done exactly: over new entities, over edges, over parents, over types. A
continuation keeps its mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.ragged import (
    expand_ranges,
    invert_cdf,
    segment_logsumexp,
)


class Mention(IntEnum):
    """What a token does, in the numbering of the original checkpoints."""

    NONE = 0
    NEW = 1
    DERIVED = 2
    CONTINUE = 3


class Walks(NamedTuple):
    """Latents of a batch: B texts, K walks each, T tokens."""

    mention: Tensor
    """Mention types, (B, K, T)."""
    node: Tensor
    """Nodes of the graph, (B, K, T); 0 where nothing is mentioned."""


@dataclass(frozen=True)
class Rows:
    """R independent decisions, each with the place and the past it is taken from."""

    position: Tensor
    """Index into the flattened (B * T) positions, (R,)."""
    window: Tensor
    """Nodes of the last ``cutoff`` tokens, the latest last, (R, W)."""

    def pick(self, index: Tensor) -> Rows:
        """Return the rows of an index."""
        return Rows(self.position[index], self.window[index])

    @property
    def previous(self) -> Tensor:
        """The node of the token before, (R,)."""
        return self.window[:, -1]


class Options(NamedTuple):
    """Weighted choices of several rows, flat."""

    row: Tensor
    mention: Tensor
    node: Tensor
    log_prob: Tensor


@dataclass(frozen=True)
class Scores:
    """Unnormalised log-probabilities of every decision at P = B * T positions.

    ``parent`` and ``new`` have one column an entity row, ``relation`` one a relation.
    """

    mention: Tensor  # (P, 4)
    new: Tensor  # (P, E)
    parent: Tensor  # (P, E)
    relation: Tensor  # (P, R)

    def tempered(self, temperature: float) -> Scores:
        """Divide every score by a temperature."""
        if temperature == 1.0:
            return self
        return Scores(
            *(
                x / temperature
                for x in (self.mention, self.new, self.parent, self.relation)
            )
        )


@dataclass(frozen=True)
class Walk:
    """The distribution of the next step of a walk, at P positions."""

    scores: Scores
    graph: KnowledgeGraph
    introducible: Tensor
    """Rows of the entity table that a NEW mention may name, (E,) or (P, E) bool."""
    only_possible: bool
    tilt: Tensor | None = None
    """b_t(node), (P, N) nats; None is no tilt. Only where ``only_possible``."""

    # -- log-probabilities ----------------------------------------------------------

    def log_prob(self, rows: Rows, mention: Tensor, node: Tensor) -> Tensor:
        """Return log p(z_t | z_<t) of one choice a row, in nats, (R,)."""
        result = self.log_mention(rows).gather(1, mention[:, None])[:, 0]
        right_node = torch.where(
            mention == Mention.CONTINUE,
            (node == rows.previous) & (node != NO_ENTITY),
            (mention == Mention.NONE) == (node == NO_ENTITY),
        )
        result = result.masked_fill(~right_node, -torch.inf)
        (new,) = (mention == Mention.NEW).nonzero(as_tuple=True)
        if len(new):
            entity = self.graph.entity_of[node[new]]
            log_new = self.log_new[rows.position[new], entity]
            result = result.index_add(0, new, log_new)
        (derived,) = (mention == Mention.DERIVED).nonzero(as_tuple=True)
        if len(derived):
            log_derived = self.log_derived(rows.pick(derived), node[derived])
            result = result.index_add(0, derived, log_derived)
        return result

    def log_mention(self, rows: Rows) -> Tensor:
        """Return the log-probabilities of the mention types, (R, 4)."""
        scores = self.scores.mention[rows.position]
        if self.only_possible:
            entities = self.graph.entity_of[rows.window]
            can_derive = self.graph.has_edges[entities].any(-1)
            always = torch.ones_like(can_derive)
            can_begin = self.introducible.any(-1).expand_as(always)
            possible = torch.stack(
                [always, can_begin, can_derive, rows.previous != NO_ENTITY], -1
            )
            scores = scores.masked_fill(~possible, -torch.inf)
        log_mention = scores.log_softmax(-1)
        if self.tilt is None:
            return log_mention
        none = torch.zeros_like(log_mention[:, 0])
        (some,) = (log_mention[:, Mention.DERIVED] > -torch.inf).nonzero(as_tuple=True)
        _, _, lift = self._log_parents(rows.pick(some))
        lift_derived = none.index_put((some,), lift)
        lift_new = self.lift_new[rows.position]
        lift = torch.stack([none, lift_new, lift_derived, none], -1)
        return (log_mention + lift).log_softmax(-1)

    @cached_property
    def log_new(self) -> Tensor:
        """Log-probabilities of the entity that a NEW mention names, (P, E)."""
        return self._new[0]

    @cached_property
    def lift_new(self) -> Tensor:
        """Log of what the tilt multiplies the mass of NEW mentions by, (P,)."""
        return self._new[1]

    @cached_property
    def _new(self) -> tuple[Tensor, Tensor]:
        scores = self.scores.new.masked_fill(~self.introducible, -torch.inf)
        log_new = scores.log_softmax(-1)
        if self.tilt is None:
            return log_new, log_new.new_zeros(len(log_new))
        tilted = log_new + self.tilt[:, self.graph.node_of_entity]
        lift = tilted.logsumexp(-1).masked_fill(~self.introducible.any(-1), 0.0)
        return tilted - lift[:, None], lift

    def log_parents(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the recent entities and their log-probabilities as parents, (R, W).

        An entity that occurs more than once in the window counts at its last place;
        the other places have ``-inf``.
        """
        entity, log_parent, _ = self._log_parents(rows)
        return entity, log_parent

    def _log_parents(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Recent entities, log-probabilities as parents, and the lift of DERIVED.

        The lift of a parent is the mean of the tilt over its edges, and that of
        derived mentions its mean over the parents, both as logarithms.
        """
        entity = self.graph.entity_of[rows.window]
        again = torch.triu(entity[:, :, None] == entity[:, None, :], diagonal=1).any(-1)
        possible = (entity != NO_ENTITY) & ~again
        if self.only_possible:
            possible &= self.graph.has_edges[entity]
        scores = self.scores.parent[rows.position[:, None], entity]
        # A row without parents is -inf throughout, not NaN.
        scores = scores.masked_fill(~possible, torch.finfo(scores.dtype).min)
        log_parent = scores.log_softmax(-1).masked_fill(~possible, -torch.inf)
        none = log_parent.new_zeros(len(log_parent))
        if self.tilt is None:
            return entity, log_parent, none
        row, place = possible.nonzero(as_tuple=True)
        distinct, which = self._distinct(rows.position[row], entity[row, place])
        edge, _, score, pair = self._edges(*distinct)
        relation = self.graph.edge_relation[edge]
        plain = self.scores.relation[distinct[0][pair], relation]
        size = len(distinct[0])
        lift = segment_logsumexp(score, pair, size) - segment_logsumexp(
            plain, pair, size
        )
        tilted = log_parent.index_put(
            (row, place), log_parent[row, place] + lift[which]
        )
        total = segment_logsumexp(tilted[row, place], row, len(tilted))
        some = possible.any(-1)
        total = total.masked_fill(~some, 0.0)
        return entity, tilted - total[:, None], total

    def log_derived(self, rows: Rows, node: Tensor) -> Tensor:
        """Return log p(``node`` is derived from any recent entity), (R,)."""
        entity, log_parent = self.log_parents(rows)
        row, place = (log_parent > -torch.inf).nonzero(as_tuple=True)
        log_edge = self.log_edge(rows.position[row], entity[row, place], node[row])
        return segment_logsumexp(log_parent[row, place] + log_edge, row, len(node))

    def log_edge(self, position: Tensor, parent: Tensor, node: Tensor) -> Tensor:
        """Return log of the summed probability of the edges parent -> node, (N,)."""
        head = self.graph.node_of_entity[parent]
        edge, pair = expand_ranges(*self.graph.edges_between(head, node))
        there = segment_logsumexp(
            self._edge_scores(position[pair], edge), pair, len(head)
        )
        log_z, which = self._log_edge_normalizer(position, parent)
        return there - log_z.masked_fill(log_z.isneginf(), 0.0)[which]

    def _log_edge_normalizer(
        self, position: Tensor, parent: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum over the edges of each *distinct* (position, parent)."""
        distinct, which = self._distinct(position, parent)
        _, _, score, pair = self._edges(*distinct)
        return segment_logsumexp(score, pair, len(distinct[0])), which

    def _distinct(
        self, position: Tensor, parent: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        num_entities = len(self.graph.node_of_entity)
        key, which = torch.unique(position * num_entities + parent, return_inverse=True)
        return (key // num_entities, key % num_entities), which

    def _edges(
        self, position: Tensor, parent: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """List edges, tails, scores and pair of every edge of (position, parent)."""
        head = self.graph.node_of_entity[parent]
        start, end = self.graph.edge_range(head)
        end = torch.where(self.graph.has_edges[parent], end, start)
        edge, pair = expand_ranges(start, end)
        score = self._edge_scores(position[pair], edge)
        return edge, self.graph.tail(edge), score, pair

    def _edge_scores(self, position: Tensor, edge: Tensor) -> Tensor:
        score = self.scores.relation[position, self.graph.edge_relation[edge]]
        if self.tilt is not None:
            score = score + self.tilt[position, self.graph.tail(edge)]
        return score

    # -- sampling -------------------------------------------------------------------

    def sample(self, rows: Rows, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one choice a row.

        Args:
            rows: R decisions, grouped by position in increasing order.
            u: Uniform numbers, (R, 4).

        Returns:
            Mention types, nodes and log-probabilities in nats, each (R,).
        """
        log_mention = self.log_mention(rows)
        every = torch.arange(len(u), device=u.device)
        mention = invert_cdf(
            log_mention.exp().flatten(),
            every.repeat_interleave(len(Mention)),
            len(u),
            every,
            u[:, 0],
        ) % len(Mention)
        node = torch.where(mention == Mention.CONTINUE, rows.previous, NO_ENTITY)
        (new,) = (mention == Mention.NEW).nonzero(as_tuple=True)
        if len(new):
            node[new] = self._sample_new(rows.position[new], u[new, 1])
        (derived,) = (mention == Mention.DERIVED).nonzero(as_tuple=True)
        if len(derived):
            node[derived] = self._sample_derived(rows.pick(derived), u[derived])
        return mention, node, self.log_prob(rows, mention, node)

    def _sample_new(self, position: Tensor, u: Tensor) -> Tensor:
        distinct, which = position.unique_consecutive(return_inverse=True)
        log_new = self.log_new[distinct]
        num_rows, num_entities = log_new.shape
        row = torch.arange(num_rows, device=u.device).repeat_interleave(num_entities)
        drawn = invert_cdf(log_new.exp().flatten(), row, num_rows, which, u)
        return self.graph.node_of_entity[drawn % num_entities]

    def _sample_derived(self, rows: Rows, u: Tensor) -> Tensor:
        entity, log_parent = self.log_parents(rows)
        num_rows, width = entity.shape
        every = torch.arange(num_rows, device=u.device)
        drawn = invert_cdf(
            log_parent.exp().flatten(),
            every.repeat_interleave(width),
            num_rows,
            every,
            u[:, 1],
        )
        parent = entity.flatten()[drawn]
        distinct, which = self._distinct(rows.position, parent)
        _, tail, score, pair = self._edges(*distinct)
        log_z = segment_logsumexp(score, pair, len(distinct[0]))
        prob = (score - log_z[pair]).exp()
        return tail[invert_cdf(prob, pair, len(distinct[0]), which, u[:, 2])]

    # -- enumeration ----------------------------------------------------------------

    def options(self, rows: Rows, num_new: int | None = None) -> Options:
        """List the possible choices of every row with their log-probabilities.

        Args:
            rows: R decisions.
            num_new: Keep this many NEW entities a row, the most probable; None keeps
                every one.
        """
        log_mention = self.log_mention(rows)
        every = torch.arange(len(log_mention), device=log_mention.device)
        log_new = self.log_new[rows.position]
        log_new, entity = log_new.topk(
            min(num_new or log_new.shape[1], log_new.shape[1])
        )
        new_row = every[:, None].expand_as(entity).flatten()
        new_node = self.graph.node_of_entity[entity.flatten()]

        derived_row, derived_node, log_derived = self._derived_options(rows)
        parts = [
            (
                Mention.NONE,
                every,
                torch.zeros_like(every),
                torch.zeros_like(log_new[:, 0]),
            ),
            (Mention.NEW, new_row, new_node, log_new.flatten()),
            (Mention.DERIVED, derived_row, derived_node, log_derived),
            (
                Mention.CONTINUE,
                every,
                rows.previous,
                log_new.new_zeros(len(every)).masked_fill(
                    rows.previous == NO_ENTITY, -torch.inf
                ),
            ),
        ]
        row = torch.cat([part[1] for part in parts])
        mention = torch.cat([torch.full_like(r, m) for m, r, _, _ in parts])
        node = torch.cat([part[2] for part in parts])
        log_prob = torch.cat([part[3] for part in parts]) + log_mention[row, mention]
        named = (node != NO_ENTITY) | (mention == Mention.NONE)
        keep = (log_prob > -torch.inf) & named
        return Options(row[keep], mention[keep], node[keep], log_prob[keep])

    def _derived_options(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct derivable nodes of every row, edges and parents summed."""
        entity, log_parent = self.log_parents(rows)
        row, place = (log_parent > -torch.inf).nonzero(as_tuple=True)
        _, tail, score, pair = self._edges(rows.position[row], entity[row, place])
        log_z = segment_logsumexp(score, pair, len(row))
        log_path = log_parent[row, place][pair] + score - log_z[pair]
        num_nodes = self.graph.num_nodes
        key, which = torch.unique(row[pair] * num_nodes + tail, return_inverse=True)
        return (
            key // num_nodes,
            key % num_nodes,
            segment_logsumexp(log_path, which, len(key)),
        )
