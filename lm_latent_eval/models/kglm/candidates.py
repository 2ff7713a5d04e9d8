"""Candidates: nodes that the words of a text suggest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.inference.ragged import expand_ranges, ranked_within
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph, words_ahead
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.text.batch import TokenBatch

FEWEST_WORDS = 64
"""Shorter texts look at no more nodes: others may be longer in a batch."""

MOST_PAIRS = 1 << 18
"""Words (of a short text ``FEWEST_WORDS``) times candidates. Where there would be more,
the candidates with an alias that stands in the text in whole come first, and long ones
before short ones."""

BEGUN, HELD = 1 << 12, 256
"""A word suggests the aliases that begin with it, or have it further on, where these
are no more than so many."""

FEW = 1 << 10
"""Number of remaining nodes up to which all are states of a text. More are drawn as
one, so estimates of texts that mention them unnamed vary."""

LINKED = 64
"""The most nodes of a text that only an edge suggests. ``benchmarks/large_world.py``
measures what these limits lose."""


def candidates_of(batch: TokenBatch, graph: KnowledgeGraph) -> Tensor:
    """Find the states of each text: no mention, then nodes that its words suggest.

    Those have an alias that has a word of the text. Last come nodes that share an edge
    with them, up to ``LINKED``: a walk may mention them, at words that do not name
    them, for what derives from them later.

    Returns:
        Nodes on the host, (B, 1 + C), the first 0, and 0 at the end where there are
        fewer.
    """
    targets, length = batch.on_host
    num_tokens = targets.shape[1]
    inside = torch.arange(num_tokens) < length[:, None]
    text = targets.masked_fill(~inside, -1)
    word, longest = text.flatten(), graph.aliases.shape[2]
    words, begun, position = graph.aliases_with(word, 0, 1, BEGUN)
    rest, held, midst = graph.aliases_with(word, 1, longest, HELD)
    matches = _matches(words, text, position), _standing(rest, text, midst)
    text_of = torch.cat([position, midst]) // num_tokens
    key, which = torch.unique(
        text_of * graph.num_nodes + torch.cat([begun, held]), return_inverse=True
    )
    best = torch.zeros_like(key)
    best.scatter_reduce_(0, which, torch.cat(matches), "amax")
    order, place = ranked_within(key // graph.num_nodes, best)
    owner = key[order] // graph.num_nodes
    kept = place < MOST_PAIRS // length.clamp_min(FEWEST_WORDS)[owner]
    order = order[kept]
    key, place = _with_linked(key[order], place[kept], best[order], graph)
    owner, column = key // graph.num_nodes, place + 1
    size = int(column.max()) + 1 if len(column) else 1
    nodes = key.new_zeros(len(text), size)
    nodes[owner, column] = key % graph.num_nodes
    rows = [_with_few_others(row, graph.num_nodes) for row in nodes]
    return pad_sequence(rows, batch_first=True)


def with_twisted(nodes: Tensor, twist: Twist) -> Tensor:
    """Add the nodes of each text, (B, 1 + C), that a twist has at its positions."""
    position, node = twist.key[:-1] // twist.num_nodes, twist.key[:-1] % twist.num_nodes
    text = position // (int(twist.key[-1]) // twist.num_nodes // len(nodes))
    rows = []
    for b, row in enumerate(nodes):
        row = row[: 1 + int((row != NO_ENTITY).sum())]
        twisted = node[text == b].unique()
        rows.append(torch.cat([row, twisted[~torch.isin(twisted, row)]]))
    return pad_sequence(rows, batch_first=True)


def _with_few_others(row: Tensor, num_nodes: int) -> Tensor:
    """Return the states of a text; add all other nodes if they are few."""
    row = row[: 1 + int((row != NO_ENTITY).sum())]
    others = others_than(row, num_nodes) if num_nodes - len(row) <= FEW else row[:0]
    return torch.cat([row, others])


def others_than(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return all other nodes of a graph."""
    missing = torch.ones(num_nodes, dtype=torch.bool)
    missing[nodes] = False
    missing[NO_ENTITY] = False
    return missing.nonzero()[:, 0]


def _with_linked(
    key: Tensor, place: Tensor, matches: Tensor, graph: KnowledgeGraph
) -> tuple[Tensor, Tensor]:
    """Add the nodes that share edges with most of what a text names, after that.

    Args:
        key: text * N + node, non-decreasing by text, (n,).
        place: Of each among those of its text, (n,).
        matches: How much of a name stands in the text, (n,).
        graph: The graph.
    """
    owner, node = key // graph.num_nodes, key % graph.num_nodes
    edge, which = expand_ranges(*graph.edge_range(node))
    tail, text = graph.tail(edge), owner[which]
    linked, edge_to = torch.unique(text * graph.num_nodes + tail, return_inverse=True)
    shared = torch.zeros_like(linked).index_add(0, edge_to, matches[which])
    new = (linked % graph.num_nodes != NO_ENTITY) & ~torch.isin(linked, key)
    linked, shared = linked[new], shared[new]
    order, rank = ranked_within(linked // graph.num_nodes, shared)
    linked, rank = linked[order][rank < LINKED], rank[rank < LINKED]
    before = torch.bincount(owner, minlength=int(owner.max()) + 1 if len(owner) else 0)
    rank = rank + before[linked // graph.num_nodes]
    return torch.cat([key, linked]), torch.cat([place, rank])


def _matches(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the words of each alias that stand there, and more if all of them do."""
    standing = _standing(words, text, position)
    return standing + words.shape[1] * (standing == (words != 0).sum(-1))


def _standing(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the first of some words (M, L) that stand at positions (M,) of texts."""
    ahead = words_ahead(text, words.shape[1], position)
    return ((words == ahead) & (words != 0)).long().cumprod(-1).sum(-1)
