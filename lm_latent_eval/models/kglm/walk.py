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

.. math:: p'(z_t) = p(z_t) \, e^{b_t(e_t)} / Z_t

with every sum of Z_t done exactly: over new entities, over edges, over parents, over
types. That nothing is mentioned has b_t = 0, or what the node that was mentioned last
makes of it, and a continuation is tilted or keeps its mass: both the tilt's to say.

Where a walk is, its rows, nodes and edges, is told on the host; their scores are on the
model's device, which is waited for once a token. So what is to be chosen is listed and
scored for every type that a walk may turn out to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, sent_uniforms
from lm_latent_eval.models.kglm.edges import ListedEdges, ParentEdges
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Tilt
from lm_latent_eval.models.kglm.new_entities import NewEntities
from lm_latent_eval.models.kglm.ragged import (
    distinct_pairs,
    expand_ranges,
    invert_cdf,
    least_of_best,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.scores import StepScores
from lm_latent_eval.models.kglm.steps import Drawn, Mention, Parents, RankedSteps, Rows
from lm_latent_eval.models.ties import GRID, ranks


@dataclass(frozen=True)
class NextStep:
    """The distribution of the next step of a walk, at P positions."""

    scores: StepScores
    graph: KnowledgeGraph
    introducible: Tensor
    """Rows of the entity table that a NEW mention may name, on the host, (E,) bool."""
    only_possible: bool
    tilt: Tilt | None = None
    """b_t(node); None is no tilt. Only where ``only_possible``."""
    expected: Tilt | None = None
    """What is still to be paid for the text from t on after a mention of a node, less
    what after none: a search compares unfinished walks by it. None is nothing."""

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.scores.mention.device)

    def select(self, position: Tensor) -> NextStep:
        """Pick positions."""
        return replace(
            self,
            scores=self.scores.select(position),
            tilt=None if self.tilt is None else self.tilt.select(position),
            expected=None if self.expected is None else self.expected.select(position),
        )

    def weighed(self, scores: Tensor | float, tilt: Tensor | float) -> NextStep:
        """Multiply scores and tilt by a number each."""
        return replace(
            self,
            scores=self.scores.scaled(scores),
            tilt=None if self.tilt is None else self.tilt.scaled(tilt),
        )

    @cached_property
    def new(self) -> NewEntities:
        """The distribution of the entity that a NEW mention names."""
        return NewEntities(self.scores.new, self.graph, self.introducible, self.tilt)

    @cached_property
    def edges(self) -> ParentEdges:
        """The distribution of the edge from a parent to a DERIVED mention."""
        return ParentEdges(self.scores.relation, self.graph, self.tilt)

    def expected_after(self, position: Tensor, window: Tensor) -> Tensor:
        """Return what is ``expected`` after the nodes of a window (..., W), nats."""
        previous = window[..., -1]
        if self.expected is None:
            return self.scores.mention.new_zeros(previous.shape)
        return torch.where(
            self._sent(previous == NO_ENTITY),
            self.expected.of_none(position, window),
            self.expected.at(position, previous),
        )

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
        """Return log p(node | mention type, z_<t), nats, (R,); 0 of what is certain."""
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
        return self._log_tilted(rows, parents).log_softmax(-1)

    def _log_tilted(self, rows: Rows, parents: Parents | None) -> Tensor:
        """Tilted masses of the mention types, not normalised, (R, 4)."""
        if parents is None and self.tilt is not None:
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
        if self.tilt is None or parents is None:
            return log_mention
        lift_new = self.new.lift[position]
        again = self.tilt.of_continuing(rows.position, rows.previous)
        none = self.tilt.of_none(rows.position, F.pad(rows.window[:, 1:], (0, 1)))
        return log_mention + torch.stack([none, lift_new, parents.lift, again], -1)

    def parents(self, rows: Rows) -> Parents:
        """Find the recent entities and their log-probabilities as parents.

        The lift of a parent is the mean of the tilt over its edges, and that of
        derived mentions its mean over the parents, both as logarithms.
        """
        row, entity = self._recent(rows)
        sums = None
        if self.tilt is not None:
            sums = self.edges.log_sums(rows.position[row], entity)
        return self._parents(rows, row, entity, sums)

    def parents_and_edges(self, rows: Rows) -> tuple[Parents, ListedEdges]:
        """Find the parents, and all edges of each."""
        row, entity = self._recent(rows)
        edges = self.edges.listed(rows.position[row], entity)
        return self._parents(rows, row, entity, edges.log_sums), edges

    def _parents(
        self,
        rows: Rows,
        row: Tensor,
        entity: Tensor,
        log_sums: tuple[Tensor, Tensor] | None,
    ) -> Parents:
        position, num_rows = rows.position[row], len(rows.position)
        score = self.scores.parent.at(position, entity)
        there = self._sent(row)
        log_parent = score - segment_logsumexp(score, there, num_rows)[there]
        if self.tilt is None or log_sums is None:
            return Parents(row, entity, log_parent, score.new_zeros(num_rows))
        tilted_sum, plain_sum = log_sums
        tilted = log_parent + (tilted_sum - plain_sum)
        lift = segment_logsumexp(tilted, there, num_rows)
        log_prob = tilted - lift[there]
        return Parents(row, entity, log_prob, lift.masked_fill(lift.isneginf(), 0.0))

    def _recent(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """List the entities that each row may derive from, by their last places."""
        named = rows.window != NO_ENTITY
        # Of tokens that go on with a mention, only the last counts.
        named[:, :-1] &= rows.window[:, :-1] != rows.window[:, 1:]
        row, place = named.nonzero(as_tuple=True)
        entity = self.graph.entity(rows.window[row, place])
        possible = entity != NO_ENTITY
        if self.only_possible:
            possible &= self.graph.has_edges[entity]
        row, entity = row[possible], entity[possible]
        _, _, which = distinct_pairs(row, entity, self.graph.num_entities)
        order = torch.arange(len(row), device=row.device)
        last = torch.zeros_like(order).scatter_reduce(0, which, order, "amax")
        last = last[which] == order
        return row[last], entity[last]

    def log_derived(self, rows: Rows, node: Tensor) -> Tensor:
        """Return log p(``node`` is derived from any recent entity), (R,)."""
        row, entity, log_parent, _ = self.parents(rows)
        log_edge = self.edges.log_prob(rows.position[row], entity, node[row])
        return segment_logsumexp(log_parent + log_edge, row, len(node))

    # -- sampling -------------------------------------------------------------------

    def sample(self, rows: Rows, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one choice a row.

        Args:
            rows: R decisions, grouped by position in increasing order.
            u: Uniform numbers, on the host, (R, 4).

        Returns:
            Mention types and nodes on the host, and log-probabilities of the types in
            nats, each (R,): with ``log_node``, those of the choices.
        """
        drawn = self.draw(rows, u)
        choice = fetched(*drawn.choice)
        node = self.drawn_node(drawn, choice, rows.previous)
        return choice[0], node, drawn.log_type

    def draw(self, rows: Rows, u: Tensor, origin: Tensor | None = None) -> Drawn:
        """Draw one choice a row, of which the host does not know yet.

        Args:
            rows: As ``sample`` takes them.
            u: The same.
            origin: Whose past each has instead of its own, (R,): another row's of its
                position; on the host or not.
        """
        past, which = rows.distinct()
        u, there = sent_uniforms(u, self.scores.mention.device), self._sent(which)
        if origin is not None:
            there = there[self._sent(origin)]
        parents, edges = self.parents_and_edges(past)
        num_pasts = len(past.position)
        log_mention = self.log_mention(past, parents)
        mention = invert_cdf(
            log_mention.exp().flatten(),
            torch.arange(num_pasts).repeat_interleave(len(Mention)),
            num_pasts,
            there,
            u[:, 0],
        ) % len(Mention)
        # All draw a new entity and an edge of a parent, wanted or not, and whoever has
        # no parent that of another: what they want is known when the device has been
        # waited for.
        entity = edge = torch.zeros_like(mention)
        if self.new.possible:
            entity = self.new.sample(rows.position, u[:, 1])
        if len(parents.row):
            prob, last = parents.log_prob.exp(), len(parents.row) - 1
            parent = invert_cdf(prob, parents.row, num_pasts, there, u[:, 1])
            edge = edges.sample(parent.clamp_max(last), u[:, 2])
        log_type = log_mention[there, mention]
        return Drawn((mention, entity, edge), edges.tail, log_type)

    def drawn_node(
        self, drawn: Drawn, choice: Sequence[Tensor], previous: Tensor
    ) -> Tensor:
        """Return the nodes that were drawn, (R,), given the choice on the host."""
        mention, entity, edge = choice
        node = torch.where(mention == Mention.CONTINUE, previous, NO_ENTITY)
        new, derived = mention == Mention.NEW, mention == Mention.DERIVED
        node[new] = self.graph.node_of_entity[entity[new]]
        node[derived] = drawn.tail[edge[derived]]
        return node

    # -- enumeration ----------------------------------------------------------------

    def options(
        self,
        rows: Rows,
        group: Tensor,
        score: Tensor,
        width: int,
        best: tuple[Tensor, Tensor],
    ) -> RankedSteps:
        r"""List the choices that may be among the best of a group of walks.

        Walks are ranked by log q, or, if it is known what is ``expected`` of the rest
        of the text, by log p of walk and words so far plus that: by all that went into
        the tilt, less what was expected and has been paid. Up to a number that the
        walks of a text share,

        .. math:: \log p(z_{\le t}, x_{\le t}) + \log \beta_{t+1}(z_{\le t}) =
            \sum_{i \le t} \log q(z_i) + \log Z_i - \log \beta_i(z_{<i})

        What cannot be among the ``width`` best is not listed: a choice below as many
        that are known at once, without any DERIVED, or a NEW one too many. Every walk
        has the same NEW entities to choose from, so of the one that ranks i-th (from 1)
        only the first ``width`` / i can be among the ``width`` best.

        Args:
            rows: R decisions.
            group: Which of them compete, at one position each, non-decreasing, (R,).
            score: What the walks so far are ranked by, nats, (R,) float64.
            width: How many of a group are wanted.
            best: The ``width`` best NEW entities at the position of every group: log
                p_new and entity, on the host, (G, width) each.
        """
        parents, edges = self.parents_and_edges(rows)
        tilted = self._log_tilted(rows, parents)
        paid = self.expected_after(rows.position, rows.window)
        tilted, paid, log_parent, log_edge = fetched(
            tilted, paid, parents.log_prob, edges.log_prob
        )
        if self.expected is not None:
            score = score + tilted.logsumexp(-1) - paid
        scores = score[:, None] + tilted.log_softmax(-1)
        scores[rows.previous == NO_ENTITY, Mention.CONTINUE] = -torch.inf
        none, new, derived, again = scores.unbind(-1)
        log_best, entity = best
        best_new = new + log_best[group, 0]
        known = torch.stack([none, best_new, again], -1)
        enough = least_of_best(group, known, width)[group] - GRID  # against rounding

        (able,) = (best_new >= enough).nonzero(as_tuple=True)
        order, rank = ranked_within(group[able], ranks(new[able]))
        most = (width // (rank + 1)).clamp_max(entity.shape[1])
        place, ranked = expand_ranges(torch.zeros_like(most), most)
        new_row = able[order[ranked]]
        here = group[new_row], place
        new_node, log_new = self.graph.node_of_entity[entity[here]], log_best[here]
        derived_row, derived_node, log_derived = self._derived_options(
            parents._replace(log_prob=log_parent),
            replace(edges, log_prob=log_edge),
            derived >= enough,
        )
        every = torch.arange(len(score))
        sure = log_new.new_zeros(len(every))
        parts = [
            (Mention.NONE, every, torch.zeros_like(every), sure),
            (Mention.NEW, new_row, new_node, log_new),
            (Mention.DERIVED, derived_row, derived_node, log_derived),
            (Mention.CONTINUE, every, rows.previous, sure),
        ]
        row = torch.cat([part[1] for part in parts])
        mention = torch.cat([torch.full_like(r, m) for m, r, _, _ in parts])
        node = torch.cat([part[2] for part in parts])
        score = scores[row, mention] + torch.cat([part[3] for part in parts])
        possible = (score > -torch.inf) & (score >= enough[row])
        possible &= (node != NO_ENTITY) | (mention == Mention.NONE)
        (keep,) = possible.nonzero(as_tuple=True)
        # In an order that no score decides, for those that tie.
        choice = row[keep] * len(Mention) + mention[keep]
        keep = keep[(choice * self.graph.num_nodes + node[keep]).argsort()]
        return RankedSteps(row[keep], mention[keep], node[keep], score[keep])

    def node_probs(self, rows: Rows, log_weight: Tensor) -> Tensor:
        """Return the distribution of the node under a mixture of pasts.

        Args:
            rows: R decisions at one position.
            log_weight: Log-probabilities of their pasts in nats, (R,).

        Returns:
            Probabilities of every node, (N,); of 0, that nothing is mentioned.
        """
        here = rows.position[:1]
        rows, which = rows.distinct()
        node_of = self._sent(self.graph.node_of_entity)
        log_weight = segment_logsumexp(log_weight, which, len(rows.position))
        (parents, edges), previous = self.parents_and_edges(rows), rows.previous
        log_mention = self.log_mention(rows, parents) + log_weight[:, None]
        new = (
            log_mention[:, Mention.NEW].exp().sum() * self.new.log_probs(here)[0].exp()
        )
        new = new.masked_fill(node_of == NO_ENTITY, 0.0)
        every = torch.ones_like(rows.position, dtype=torch.bool)
        row, derived_node, log_derived = self._derived_options(parents, edges, every)
        derived = (log_derived + log_mention[self._sent(row), Mention.DERIVED]).exp()
        again = log_mention[:, Mention.CONTINUE].exp()
        none = log_mention[:, Mention.NONE].exp()
        nobody, previous = self._sent(previous == NO_ENTITY), self._sent(previous)
        return (
            none.new_zeros(self.graph.num_nodes)
            .index_add(0, node_of, new)
            .index_add(0, self._sent(derived_node), derived)
            .index_add(0, previous, again.masked_fill(nobody, 0.0))
            .index_add(0, torch.zeros_like(previous), none)
        )

    def _derived_options(
        self, parents: Parents, edges: ListedEdges, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct derivable nodes of some rows, edges and parents summed.

        ``rows`` (R,) bool, and those returned, are on the host, and nodes as well.
        """
        (kept,) = rows[parents.row].nonzero(as_tuple=True)
        tail, log_edge, which = edges.of(kept)
        parent = kept[which]
        row, node, which = distinct_pairs(
            parents.row[parent], tail, self.graph.num_nodes
        )
        log_parent = parents.log_prob[sent(parent, parents.log_prob.device)]
        return row, node, segment_logsumexp(log_parent + log_edge, which, len(row))
