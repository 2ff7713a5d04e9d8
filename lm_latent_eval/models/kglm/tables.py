"""Tables of a text: what no walk changes, scored once by the network, on the host.

The states of a text are no mention, its candidate nodes, one that stands for all nodes
that are not listed, and after that single nodes: all of a small graph, or those that a
walk has met though they were not listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Floats, Integers, Keys, compiled
from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.particles import odd_numbers
from lm_latent_eval.inference.ragged import expand_ranges, invert_cdf
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.latents import NextStep
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.text.batch import TokenBatch

OTHERS = 8
"""Nodes that stand for all that are not listed at a position: the most probable NEW
entities among them."""

FURTHEST = 60.0
"""Nats. An unlisted node may have a word that no typical one has: it is not ranked to
cost more than this over the best candidate."""


class WordScorer(Protocol):
    """The word distribution of p."""

    def __call__(
        self, text: Tensor, batch: TokenBatch, position: Tensor, node: Tensor
    ) -> Tensor:
        """Return log p(x_t | node, x_<t) of positions and nodes, nats, elementwise."""
        ...


class Tables(NamedTuple):
    """Scores of a text of T tokens in M states, nats; -inf of what is impossible."""

    node: Integers
    """Of each state; 0 of no mention and of what stands for several, (M,)."""
    word: Floats
    """log p(x_t | s), (T, M); of a proposal that does not look ahead its twist."""
    new: Floats
    """log p_new(s), (T, M)."""
    mention: Floats
    """Scores of the mention types, (T, 4)."""
    parent: Floats
    """Scores of states as parents, (T, M)."""
    edge_z: Floats
    """Log of the sum of e^score of all edges of each state, (T, M)."""
    edge_other: Floats
    """Log of the probability of its edges to nodes that are not listed, (T, M)."""
    relation: Floats
    """Scores of relations, (T, R)."""
    edge_start: Integers
    """Where the edges of each state to listed states begin, and the end, (M + 1,)."""
    edge_tail: Integers
    """The states that they lead to, (E,)."""
    edge: Floats
    """The probability of each, (T, E)."""
    code: Keys
    """What each state adds to the key of a walk by its place, (cutoff + 1, M)."""
    begins: bool
    """Whether any entity may be introduced."""
    other: int
    """The state of all nodes that are not listed; those before are candidates."""
    num_listed: int
    """States from this on are not listed."""


@dataclass(frozen=True)
class TextScores:
    """The texts of a batch and the network's scores of their steps."""

    walk: NextStep
    """Of p's next step, at B T positions, without a twist, over possible choices."""
    batch: TokenBatch
    text: Tensor
    """h^t, (B, T, token_embedding_dim)."""
    scorer: WordScorer | None
    """p's words; None: there is a twist instead, or nothing."""
    twist: Twist | None = None
    """Of nodes that are all listed."""
    complete: bool = False
    """Whether no other nodes are asked for than those that are listed."""

    def words(self, position: Tensor, node: Tensor) -> Tensor:
        """Return log p of words, or the twist, of positions and nodes, elementwise."""
        if self.scorer is not None:
            return self.scorer(self.text, self.batch, position, node)
        if self.twist is not None:
            return self.twist.at(position, node)
        return widened(torch.zeros(position.shape, device=self.text.device))

    @property
    def graph(self) -> KnowledgeGraph:
        """The graph."""
        return self.walk.graph

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score nodes of each text, on the host, (B, n); 0 in the first place is none.

        Returns:
            Log p of words and of NEW mentions and scores of parents, (B, T, n) each,
            where the scores are.
        """
        entity, shape = self.graph.entity(nodes), self.batch.targets.shape
        able = entity != NO_ENTITY
        if self.walk.only_possible:
            able &= self.graph.has_edges[entity]
        introducible = self.walk.new.introducible[entity]
        used = nodes != NO_ENTITY
        used[:, 0] = True
        some = self.batch.inside_on_host[..., None] & used[:, None]
        word = self._word_table(nodes, some)
        scores, new = self.walk.scores, self.walk.new
        log_new = scores.new.tables(entity) - new.log_z.view(*shape, 1)
        masks = [sent(~x[:, None], word.device) for x in (introducible, able)]
        return (
            word,
            widened(log_new).masked_fill(masks[0], -torch.inf),
            widened(scores.parent.tables(entity)).masked_fill(masks[1], -torch.inf),
        )

    def _word_table(self, nodes: Tensor, some: Tensor) -> Tensor:
        """Return log p of words, or the twist; -inf but for some, (B, T, n)."""
        if self.scorer is None and self.twist is None:
            some = sent(some, self.text.device)
            return wide_zeros(some.shape, some.device).masked_fill(~some, -torch.inf)
        places = torch.arange(some[..., 0].numel()).view(*some.shape[:2], 1)
        position, node = places.expand_as(some), nodes[:, None].expand_as(some)
        paid = widened(self.words(position[some], node[some]))
        (index,) = some.flatten().nonzero(as_tuple=True)
        word = wide_zeros((some.numel(),), paid.device) - torch.inf
        return word.index_copy(0, sent(index, paid.device), paid).view(some.shape)

    def others(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return what stands for the nodes that are not among some, (B, n).

        Returns:
            Log p of the word of a typical one, and of introducing any of them, (B, T)
            nats each, where the scores are.
        """
        shape = self.batch.targets.shape
        if self.complete:
            nothing = wide_zeros(shape, self.text.device)
            return nothing, nothing - torch.inf
        position = torch.arange(shape[0] * shape[1])
        log_new, log_top, entity = self.walk.new.rest(
            position, self.entities(nodes), OTHERS
        )
        log_new = widened(log_new).view(shape)
        if self.scorer is None:  # their twist is 0
            return torch.zeros_like(log_new), log_new
        typical = self.graph.node_of_entity[fetched(entity)[0]]
        here = position[:, None].expand_as(typical)
        paid = widened(self.words(here.flatten(), typical.flatten()))
        paid = (paid.view(typical.shape) + widened(log_top)).logsumexp(-1)
        return paid.view(shape), log_new

    def entities(self, nodes: Tensor) -> Tensor:
        """Return rows of the entity table that nodes own; 0 of other nodes, (B, n)."""
        entity = self.graph.entity(nodes)
        return torch.where(self.graph.node_of_entity[entity] == nodes, entity, 0)

    def one(self, text: int) -> TextScores:
        """Return those of one text, for nodes that are not listed."""
        num_tokens = self.batch.targets.shape[1]
        position = torch.arange(num_tokens) + text * num_tokens
        return replace(
            self,
            walk=replace(self.walk, scores=self.walk.scores.select(position)),
            batch=self.batch.select(torch.tensor([text])),
            text=self.text[text : text + 1],
            twist=None,
        )


@torch.no_grad()
def tables_of(scores: TextScores, nodes: Tensor, cutoff: int) -> list[Tables]:
    """Build the tables of the texts of a batch.

    Args:
        scores: By the network.
        nodes: Candidates of each text, on the host, (B, 1 + C): the first 0, and 0 at
            the end where there are fewer.
        cutoff: Tokens that an entity stays a parent after its mention.
    """
    size = *scores.batch.targets.shape, -1
    of_steps = scores.walk.scores.mention, scores.walk.scores.relation
    steps = [widened(part.detach()).view(size) for part in of_steps]
    parts = *scores.of(nodes), *scores.others(nodes), *steps
    word, new, parent, other_word, other_new, mention, relation = (
        part.double().numpy() for part in fetched(*parts)
    )
    other_word = _typical(other_word, word)
    nobody = np.full_like(other_new, -np.inf)
    tables = []
    for b, length in enumerate(scores.batch.on_host[1].tolist()):
        number = 1 + int((nodes[b] != NO_ENTITY).sum())
        paid, introduced, parents = (
            np.append(part[b, :length, :number], last[b, :length, None], axis=1)
            for part, last in (
                (word, other_word),
                (new, other_new),
                (parent, nobody),
            )
        )
        table = Tables(
            node=np.append(nodes[b, :number].numpy(), NO_ENTITY),
            word=paid,
            new=introduced,
            mention=np.ascontiguousarray(mention[b, :length]),
            parent=parents,
            relation=np.ascontiguousarray(relation[b, :length]),
            begins=bool(scores.walk.new.possible),
            other=number,
            num_listed=number + 1,
            **_no_edges(length, cutoff),
        )
        tables.append(_with_edges(table, scores.graph))
    return tables


def _no_edges(length: int, cutoff: int) -> dict[str, Any]:
    """Return the fields of tables that ``_with_edges`` adds to."""
    nothing = np.zeros((length, 0))
    return {
        "edge_z": nothing,
        "edge_other": nothing,
        "edge": nothing,
        "edge_start": np.zeros(1, np.int64),
        "edge_tail": np.zeros(0, np.int64),
        "code": np.zeros((cutoff + 1, 0), np.uint64),
    }


def _typical(word: Floats, listed: Floats) -> Floats:
    """Return log p of the word of nodes that are not listed, (B, T), never -inf."""
    best = listed.max(-1) - FURTHEST
    least = np.where(np.isneginf(best), -FURTHEST, best)
    return np.where(np.isneginf(word), least, word)


def _with_edges(tables: Tables, graph: KnowledgeGraph) -> Tables:
    """Add the edges and the codes of the states that lack them."""
    node = torch.from_numpy(tables.node[len(tables.edge_start) - 1 :])
    listed = torch.from_numpy(tables.node[: tables.num_listed])
    parent = tables.parent[:, len(tables.edge_start) - 1 :]
    able = torch.from_numpy(~np.isneginf(parent).all(0))
    able &= graph.has_edges[graph.entity(node)]
    start, end = graph.edge_range(node)
    start, end = (torch.where(able, part, 0) for part in (start, end))
    edge, head = expand_ranges(start, end)
    order = listed.argsort(stable=True)
    place = torch.searchsorted(listed[order], graph.tail(edge))
    place = order[place.clamp_max(len(order) - 1)]
    known = (listed[place] == graph.tail(edge)) & (graph.tail(edge) != NO_ENTITY)
    state = torch.where(known, place, -1).numpy()
    first = torch.cat([start.new_zeros(1), (end - start).cumsum(0)]).numpy()
    kind = graph.relation(edge).long().numpy()
    log_z, log_other, probability = _edge_sums(tables.relation, first, kind, state)
    number = torch.bincount(head[known], minlength=len(node)).cumsum(0).numpy()
    odd = odd_numbers(len(tables.code)).numpy().view(np.uint64)
    code = odd[:, None] * node.numpy().view(np.uint64)
    return tables._replace(
        edge_z=np.concatenate([tables.edge_z, log_z], 1),
        edge_other=np.concatenate([tables.edge_other, log_other], 1),
        edge_start=np.concatenate([tables.edge_start, tables.edge_start[-1] + number]),
        edge_tail=np.concatenate([tables.edge_tail, state[state >= 0]]),
        edge=np.concatenate([tables.edge, probability], 1),
        code=np.concatenate([tables.code, code], 1),
    )


@compiled
def _edge_sums(
    relation: Floats, first: Integers, kind: Integers, state: Integers
) -> tuple[Floats, Floats, Floats]:
    """Return the fields ``edge_z``, ``edge_other`` and ``edge`` of some states.

    Args:
        relation: Scores of relations, (T, R).
        first: Where the edges of each state begin, and the end, (M + 1,).
        kind: Their relations, (E,).
        state: Where they lead to; -1: to a node that is not listed, (E,).
    """
    shape = len(relation), len(first) - 1
    log_z, log_other = np.zeros(shape), np.full(shape, -np.inf)
    probability = np.zeros((shape[0], np.count_nonzero(state >= 0)))
    for t in range(shape[0]):
        top, end = relation[t].max(), 0
        scaled = np.exp(relation[t] - top)
        for c in range(shape[1]):
            if first[c] == first[c + 1]:
                continue
            peak, total, others, begin = -np.inf, 0.0, 0.0, end
            for e in range(first[c], first[c + 1]):
                peak = max(peak, relation[t, kind[e]])
            underflows = peak < top - 600.0
            base = peak if underflows else top
            for e in range(first[c], first[c + 1]):
                mass = scaled[kind[e]]
                if underflows:
                    mass = math.exp(relation[t, kind[e]] - peak)
                total += mass
                if state[e] >= 0:
                    probability[t, end] = mass
                    end += 1
                else:
                    others += mass
            probability[t, begin:end] /= total
            log_z[t, c] = base + math.log(total)
            if others > 0:
                log_other[t, c] = math.log(others / total)
    return log_z, log_other, probability


@torch.no_grad()
def with_nodes(
    tables: Tables, scores: TextScores, node: Tensor, *, listed: bool = False
) -> Tables:
    """Add single nodes to the tables of a text.

    Args:
        tables: Of the text.
        scores: Of the text alone.
        node: (n,).
        listed: Whether to list them, and all that were added before.
    """
    columns = fetched(*scores.of(torch.cat([node.new_zeros(1), node])[None]))
    length = len(tables.word)
    word, new, parent = (
        np.concatenate([before, part[0, :length, 1:].double().numpy()], 1)
        for before, part in zip(
            (tables.word, tables.new, tables.parent), columns, strict=True
        )
    )
    more = tables._replace(
        node=np.concatenate([tables.node, node.numpy()]),
        word=word,
        new=new,
        parent=parent,
    )
    if listed:
        new[:, tables.other] = -np.inf
        if len(np.unique(more.node)) < scores.graph.num_nodes:
            entity = scores.entities(torch.from_numpy(more.node)[None])
            position = torch.arange(length)
            (rest,) = fetched(scores.walk.new.rest(position, entity, 1)[0])
            new[:, tables.other] = rest.double().numpy()
        edges = _no_edges(length, len(tables.code) - 1)
        more = more._replace(num_listed=len(more.node), **edges)
    return _with_edges(more, scores.graph)


def drawn_new(
    tables: Tables, scores: TextScores, t: int, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw NEW entities of token t of a text that are not listed.

    Returns:
        Nodes, and the log of the probability of each among those, nats, (n,) each.
    """
    row = scores.walk.new.masked_rows(torch.tensor([t]))[0]
    listed = torch.from_numpy(tables.node[: tables.num_listed])
    entity = sent(scores.entities(listed), row.device)
    row = row.index_fill(0, entity, -torch.inf)
    (mass,) = fetched(widened(row).softmax(0))
    which, place = torch.zeros(len(u), dtype=torch.long), torch.zeros_like(mass).long()
    drawn = invert_cdf(mass, place, 1, which, u)
    return scores.graph.node_of_entity[drawn], mass[drawn].double().log()


def drawn_derived(
    tables: Tables,
    graph: KnowledgeGraph,
    t: int,
    parents: tuple[Integers, Floats],
    u: float,
) -> tuple[int, float]:
    """Draw an edge to a node that is not listed from the parents of a walk at token t.

    Args:
        tables: Of the text.
        graph: The graph.
        t: A token.
        parents: States, and their probabilities as parents.
        u: A number of (0, 1).

    Returns:
        The node, and the log of the probability of it among those, nats.
    """
    state, weight = parents
    start, end = graph.edge_range(torch.from_numpy(tables.node[state]))
    edge, which = expand_ranges(start, end)
    listed = torch.from_numpy(tables.node[: tables.num_listed])
    left = ~torch.isin(graph.tail(edge), listed)
    edge, of = edge[left], which[left].numpy()
    relation = graph.relation(edge).numpy()
    score = tables.relation[t, relation] - tables.edge_z[t, state[of]]
    mass, tail = weight[of] * np.exp(score), graph.tail(edge).numpy()
    total = mass.cumsum()
    drawn = min(int(np.searchsorted(total, u * total[-1], "right")), len(total) - 1)
    share = mass[tail == tail[drawn]].sum() / total[-1]
    return int(tail[drawn]), math.log(share)
