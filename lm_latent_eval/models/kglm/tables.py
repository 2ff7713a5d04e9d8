"""Tables of a text: what no walk changes, scored once by the network, on the host.

The states of a text are no mention, its candidate nodes, one that stands for all nodes
that are not listed, and after that single nodes: all of a small graph, or those that a
walk has met though they were not listed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

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


class Links(NamedTuple):
    """Edges of M states; those from one to another are one link.

    Edges of a state to nodes that are not listed are one link to what stands for those.
    """

    first: Integers
    """Index of each state's first edge, and the end, (M + 1,)."""
    relation: Integers
    """Relation of each edge, (E,)."""
    link: Integers
    """Index of the link that each edge is part of, (E,)."""
    start: Integers
    """Index of each state's first link, and the end, (M + 1,)."""
    tail: Integers
    """The states that they lead to, (L,)."""
    share: Floats
    """The probability of each link of a state, (T, L); see ``weigh_links``."""
    log_z: Floats
    """Log of the sum of e^score of all edges of each state, (T, M); NaN: they were not
    yet asked for."""


class Tables(NamedTuple):
    """Scores of a text of T tokens in M states, nats; -inf if impossible."""

    node: Integers
    """Node of each state; 0 for no mention and for several nodes in one, (M,)."""
    word: Floats
    """log p(x_t | s), (T, M); of a proposal that does not look ahead its twist."""
    new: Floats
    """log p_new(s), (T, M)."""
    mention: Floats
    """Scores of the mention types, (T, 4)."""
    parent: Floats
    """Scores of states as parents, (T, M)."""
    relation: Floats
    """Scores of relations, (T, R)."""
    links: Links
    """Edges of states."""
    code: Keys
    """Number that each state adds to the key of a walk, by place, (cutoff + 1, M)."""
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
    """Scores of p's next step at B T positions, over possible choices, untwisted."""
    batch: TokenBatch
    text: Tensor
    """h^t, (B, T, token_embedding_dim)."""
    scorer: WordScorer | None
    """p's words; None: there is a twist instead, or nothing."""
    twist: Twist | None = None
    """Twist of nodes that are all listed."""
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
        listed = (nodes != NO_ENTITY).sum(1)
        if self.complete or bool((listed == self.graph.num_nodes - 1).all()):
            nothing = wide_zeros(shape, self.text.device) - torch.inf
            return nothing, nothing
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
            links=_no_links(length),
            code=np.zeros((cutoff + 1, 0), np.uint64),
            begins=bool(scores.walk.new.possible),
            other=number,
            num_listed=number + 1,
        )
        tables.append(table)
    return _with_links(tables, scores.graph)


def _no_links(length: int) -> Links:
    """Return those of no states."""
    none, begin, table = np.zeros(0, int), np.zeros(1, int), np.zeros((length, 0))
    return Links(begin, none, none, begin, none, table, table)


def _typical(word: Floats, listed: Floats) -> Floats:
    """Return log p of the word of nodes that are not listed, (B, T), never -inf."""
    best = listed.max(-1) - FURTHEST
    least = np.where(np.isneginf(best), -FURTHEST, best)
    return np.where(np.isneginf(word), least, word)


def _with_links(texts: Sequence[Tables], graph: KnowledgeGraph) -> list[Tables]:
    """Add the links and the codes of the states that lack them."""
    lacking = [x.node[len(x.links.first) - 1 :] for x in texts]
    node = torch.from_numpy(np.concatenate(lacking))
    start, end = graph.edge_range(node)
    end = torch.where(graph.has_edges[graph.entity(node)], end, start)
    edge, _ = expand_ranges(start, end)
    first = np.concatenate([[0], (end - start).cumsum(0).numpy()])
    tail, relation = graph.tail(edge).numpy(), graph.relation(edge).long().numpy()
    odd = odd_numbers(len(texts[0].code)).numpy().view(np.uint64)[:, None]
    linked, at = [], 0
    for x, mine in zip(texts, lacking, strict=True):
        of = first[at : at + len(mine) + 1]
        some = slice(of[0], of[-1])
        begin, at = of - of[0], at + len(mine)
        order = x.node[: x.num_listed].argsort(kind="stable")
        link, *ends = link_edges(begin, tail[some], x.node[order], order, x.other)
        links = _joined(x.links, begin, relation[some], link, *ends)
        code = odd * mine.view(np.uint64)
        linked.append(x._replace(links=links, code=np.concatenate([x.code, code], 1)))
    return linked


def _joined(
    old: Links,
    first: Integers,
    relation: Integers,
    link: Integers,
    start: Integers,
    tail: Integers,
) -> Links:
    """Add edges of more states, whose links are not yet weighed."""
    share = np.empty((len(old.share), len(old.tail) + len(tail)))
    share[:, : len(old.tail)] = old.share
    unknown = np.full((len(share), len(first) - 1), np.nan)
    return Links(
        np.append(old.first, old.first[-1] + first[1:]),
        np.append(old.relation, relation),
        np.append(old.link, len(old.tail) + link),
        np.append(old.start, old.start[-1] + start[1:]),
        np.append(old.tail, tail),
        share,
        np.append(old.log_z, unknown, 1),
    )


@compiled
def link_edges(
    first: Integers, node: Integers, listed: Integers, state: Integers, other: int
) -> tuple[Integers, Integers, Integers]:
    """Return the fields ``link``, ``start`` and ``tail`` of some states' links.

    Args:
        first: Where the edges of each state begin, and the end, (n + 1,).
        node: Nodes that they lead to, (E,).
        listed: Nodes that have a state, in order, (M,).
        state: The states, (M,).
        other: That of all other nodes.
    """
    link, tail = np.empty(len(node), np.int64), np.empty(len(node), np.int64)
    start, number = np.zeros(len(first), np.int64), 0
    latest = np.full(len(listed), -1)
    for c in range(len(first) - 1):
        begin, unlisted = number, 0
        for e in range(first[c], first[c + 1]):
            place, link[e] = np.searchsorted(listed, node[e]), -1
            if node[e] == 0 or place == len(listed) or listed[place] != node[e]:
                unlisted += 1
                continue
            s = state[place]
            if latest[s] < begin:
                latest[s], tail[number] = number, s
                number += 1
            link[e] = latest[s]
        if unlisted > 0:
            tail[number] = other
            for e in range(first[c], first[c + 1]):
                if link[e] < 0:
                    link[e] = number
            number += 1
        start[c + 1] = number
    return link, start, tail[:number]


@compiled
def weigh_links(links: Links, relation: Floats, t: int, c: int) -> None:
    """Find what the links of a state share at token t, whose ``log_z`` is NaN so far.

    Of a state without edges it becomes 0. Relations are scored as ``Tables`` has it.
    """
    begin, end = links.first[c], links.first[c + 1]
    links.log_z[t, c] = 0.0
    if begin == end:
        return
    peak, total = -np.inf, 0.0
    for e in range(begin, end):
        peak = max(peak, relation[t, links.relation[e]])
    links.share[t, links.start[c] : links.start[c + 1]] = 0.0
    for e in range(begin, end):
        mass = math.exp(relation[t, links.relation[e]] - peak)
        links.share[t, links.link[e]] += mass
        total += mass
    links.share[t, links.start[c] : links.start[c + 1]] /= total
    links.log_z[t, c] = peak + math.log(total)


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
        more = more._replace(
            num_listed=len(more.node), links=_no_links(length), code=tables.code[:, :0]
        )
    (more,) = _with_links([more], scores.graph)
    return more


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
    score = tables.relation[t, relation] - tables.links.log_z[t, state[of]]
    mass, tail = weight[of] * np.exp(score), graph.tail(edge).numpy()
    total = mass.cumsum()
    drawn = min(int(np.searchsorted(total, u * total[-1], "right")), len(total) - 1)
    share = mass[tail == tail[drawn]].sum() / total[-1]
    return int(tail[drawn]), math.log(share)
