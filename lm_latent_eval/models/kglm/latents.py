r"""Walks, and the distribution of one step, p(z_t | z_<t, x).

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

A distribution may be twisted towards nodes that the text speaks for:

.. math:: p'(z_t) = p(z_t) \, e^{b_t(e_t)} / Z_t

with every sum of Z_t done exactly: over new entities, over edges, over parents, over
types. That nothing is mentioned, and that a mention goes on, has b_t = 0.

Where a walk is, its rows, nodes and edges, is decided on the host; their scores are on
the model's device. Walks are searched and drawn by tables of these (``tables.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.ragged import (
    distinct,
    distinct_pairs,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.scores import (
    NewEntities,
    ParentEdges,
    StepScores,
    Twist,
)


class Mention(IntEnum):
    """Type of a token's decision, in the numbering of the original checkpoints."""

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
    """R independent decisions, each with the place and the past it is taken from.

    On the host.
    """

    position: Tensor
    """Index into the flattened (B * T) positions, (R,)."""
    window: Tensor
    """Nodes of the last ``cutoff`` tokens, the latest last, (R, W)."""

    def pick(self, index: Tensor) -> Rows:
        """Return the rows of an index."""
        return Rows(self.position[index], self.window[index])

    def distinct(self) -> tuple[Rows, Tensor]:
        """Return every place and past once, and which of them each row has, (R,)."""
        code = fingerprint((self.position[None], self.window[None]))[0]
        different, which = distinct(code)
        every = torch.arange(len(which), device=which.device)
        one = torch.zeros_like(different).scatter(0, which, every)
        return self.pick(one), which

    @property
    def previous(self) -> Tensor:
        """The node of the token before, (R,)."""
        return self.window[:, -1]

    @cached_property
    def last(self) -> Tensor:
        """Where each node of a window stands last in it, (R, W) bool."""
        ordered, order = self.window.sort(dim=1, stable=True)
        again = F.pad(ordered.diff(dim=1) == 0, (0, 1))
        last = torch.zeros_like(again).scatter(1, order, ~again)
        return last & (self.window != NO_ENTITY)


class Parents(NamedTuple):
    """Possible parents of a DERIVED mention, for every row, flat."""

    row: Tensor
    """Non-decreasing, on the host, (N,)."""
    entity: Tensor
    """Recent entities, each once a row, on the host, (N,)."""
    log_prob: Tensor
    """Nats, (N,)."""
    lift: Tensor
    """Log of what the twist multiplies the mass of DERIVED mentions by, (R,)."""


@dataclass(frozen=True)
class NextStep:
    """The distribution of the next step of a walk, at P positions."""

    scores: StepScores
    graph: KnowledgeGraph
    introducible: Tensor
    """Rows of the entity table that a NEW mention may name, on the host, (E,) bool."""
    only_possible: bool
    twist: Twist | None = None
    """b_t(node); None is no twist. Only where ``only_possible``."""

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.scores.mention.device)

    @cached_property
    def new(self) -> NewEntities:
        """The distribution of the entity that a NEW mention names."""
        return NewEntities(self.scores.new, self.graph, self.introducible, self.twist)

    @cached_property
    def edges(self) -> ParentEdges:
        """The distribution of the edge from a parent to a DERIVED mention."""
        return ParentEdges(self.scores.relation, self.graph, self.twist)

    # -- log-probabilities ----------------------------------------------------------

    def log_prob(self, rows: Rows, mention: Tensor, node: Tensor) -> Tensor:
        """Return log p(z_t | z_<t) of one choice a row, in nats, (R,)."""
        past, which = rows.distinct()
        index = (self._sent(which), self._sent(mention))
        log_mention = self.log_mention(past)[index]
        right_node = torch.where(
            mention == Mention.CONTINUE,
            (node == rows.previous) & (node != NO_ENTITY),
            (mention == Mention.NONE) == (node == NO_ENTITY),
        )
        log_mention = log_mention.masked_fill(self._sent(~right_node), -torch.inf)
        return log_mention + self.log_node(rows, mention, node)

    def log_node(self, rows: Rows, mention: Tensor, node: Tensor) -> Tensor:
        """Return log p(node | mention type, z_<t), nats, (R,); 0 for a certain node."""
        result = self.scores.mention.new_zeros(len(node))
        (new,) = (mention == Mention.NEW).nonzero(as_tuple=True)
        if len(new):
            entity = self.graph.entity(node[new])
            log_new = self.new.log_prob(rows.position[new], entity)
            result = result.index_add(0, self._sent(new), log_new)
        (derived,) = (mention == Mention.DERIVED).nonzero(as_tuple=True)
        if len(derived):
            past, which = rows.pick(derived).distinct()
            some, tail, pair = distinct_pairs(
                which, node[derived], self.graph.num_nodes
            )
            log_derived = self.log_derived(past.pick(some), tail)
            log_derived = log_derived[self._sent(pair)]
            result = result.index_add(0, self._sent(derived), log_derived)
        return result

    def log_mention(self, rows: Rows, parents: Parents | None = None) -> Tensor:
        """Return the log-probabilities of the mention types, (R, 4).

        ``parents`` are those of the rows, where they are known already.
        """
        return self.log_twisted(rows, parents).log_softmax(-1)

    def log_twisted(self, rows: Rows, parents: Parents | None) -> Tensor:
        """Tilted masses of the mention types, not normalised, (R, 4)."""
        if parents is None and self.twist is not None:
            parents = self.parents(rows)
        position = self._sent(rows.position)
        scores = self.scores.mention[position]
        if self.only_possible:
            row = self._recent(rows)[0] if parents is None else parents.row
            always = torch.ones_like(rows.position, dtype=torch.bool)
            can_begin = always & self.new.possible
            can_derive = torch.zeros_like(always).index_fill(0, row, True)
            possible = torch.stack(
                [always, can_begin, can_derive, rows.previous != NO_ENTITY], -1
            )
            scores = scores.masked_fill(self._sent(~possible), -torch.inf)
        log_mention = scores.log_softmax(-1)
        if self.twist is None or parents is None:
            return log_mention
        same = torch.zeros_like(parents.lift)
        lift = torch.stack([same, self.new.lift[position], parents.lift, same], -1)
        return log_mention + lift

    def parents(self, rows: Rows) -> Parents:
        """Find the recent entities and their log-probabilities as parents.

        The lift of a parent is the mean of the twist over its edges, and that of
        derived mentions its mean over the parents, both as logarithms.
        """
        row, entity = self._recent(rows)
        num_rows, there = len(rows.position), self._sent(row)
        position, parent, pair = distinct_pairs(
            rows.position[row], entity, self.scores.parent.num_entities
        )
        pair = self._sent(pair)
        score = self.scores.parent.at(position, parent)[pair]
        log_parent = score - segment_logsumexp(score, there, num_rows)[there]
        if self.twist is None:
            return Parents(row, entity, log_parent, score.new_zeros(num_rows))
        twisted_sum, plain_sum = self.edges.log_sums(position, parent)
        twisted = log_parent + (twisted_sum - plain_sum)[pair]
        lift = segment_logsumexp(twisted, there, num_rows)
        log_prob = twisted - lift[there]
        return Parents(row, entity, log_prob, lift.masked_fill(lift.isneginf(), 0.0))

    def _recent(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """List the entities that each row may derive from, by their last places."""
        row, place = rows.last.nonzero(as_tuple=True)
        entity = self.graph.entity(rows.window[row, place])
        possible = entity != NO_ENTITY
        if self.only_possible:
            possible &= self.graph.has_edges[entity]
        return row[possible], entity[possible]

    def log_derived(self, rows: Rows, node: Tensor) -> Tensor:
        """Return log p(``node`` is derived from any recent entity), (R,)."""
        row, entity, log_parent, _ = self.parents(rows)
        log_edge = self.edges.log_prob(rows.position[row], entity, node[row])
        return segment_logsumexp(log_parent + log_edge, row, len(node))
