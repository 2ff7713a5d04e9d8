"""Candidates: nodes that the words of a text suggest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.text.batch import TokenBatch

FEWEST_WORDS = 64
"""Shorter texts look at no more nodes: others may be longer in a batch."""

MOST_PAIRS = 1 << 18
"""Words (of a short text ``FEWEST_WORDS``) times candidates. Where there would be more,
those come first that are most of what words are expected to name."""

COMMON = 1 << 12
"""A word suggests the aliases that have it where these are no more than so many."""

FEW = 1 << 10
"""Number of remaining nodes up to which all are states of a text. More are drawn as
one, so estimates of texts that mention them unnamed vary."""

LINKED = 64
"""The most nodes of a text that only an edge suggests. ``benchmarks/large_world.py``
measures what these limits lose."""


class Candidates(NamedTuple):
    """States of B texts."""

    nodes: Tensor
    """Nodes on the host, (B, 1 + C), the first 0, and 0 at the end where there are
    fewer."""
    lesser: Tensor
    """Mask of nodes that half of each limit leaves out, where all of it leaves out
    others, (B, 1 + C)."""


def candidates_of(batch: TokenBatch, graph: KnowledgeGraph) -> Candidates:
    """Find the states of each text: no mention, then nodes that its words suggest.

    Those have an alias that has a word of the text. Last come nodes that share an edge
    with them, up to ``LINKED``: a walk may mention them, at words that do not name
    them, for what derives from them later.
    """
    texts = (text[:length] for text, length in zip(*batch.on_host, strict=True))
    rows = zip(*(_candidates_of_text(text, graph) for text in texts), strict=True)
    return Candidates(*(pad_sequence([*part], batch_first=True) for part in rows))


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


def others_than(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return all other nodes of a graph."""
    missing = torch.ones(num_nodes, dtype=torch.bool)
    missing[nodes] = False
    missing[NO_ENTITY] = False
    return missing.nonzero()[:, 0]


def _candidates_of_text(text: Tensor, graph: KnowledgeGraph) -> tuple[Tensor, Tensor]:
    """Return the states of a text (T,), and which are the lesser ones, (1 + C,)."""
    node, share, rare = _suggested(text, graph)
    node, which = node.unique(return_inverse=True)
    named = share.new_zeros(len(node)).index_add(0, which, share)
    sure = torch.zeros(len(node), dtype=torch.bool).index_fill(0, which[rare], True)
    most = MOST_PAIRS // max(len(text), FEWEST_WORDS)
    kept, lesser = _best(named, most)
    node, named, lesser = node[kept], named[kept], lesser | ~sure[kept]

    edge, which = expand_ranges(*graph.edge_range(node))
    linked, to = graph.tail(edge).unique(return_inverse=True)
    shared = named.new_zeros(len(linked)).index_add(0, to, named[which])
    new = (linked != NO_ENTITY) & ~torch.isin(linked, node)
    kept, lesser_linked = _best(shared[new], LINKED)

    states = torch.cat([node.new_zeros(1), node, linked[new][kept]])
    lesser = torch.cat([lesser.new_zeros(1), lesser, lesser_linked])
    if graph.num_nodes - len(states) <= FEW:
        states = torch.cat([states, others_than(states, graph.num_nodes)])
        lesser = torch.zeros(len(states), dtype=torch.bool)
    return states, lesser


def _best(value: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the places of the best, and which of these are in the lesser half."""
    best = value.argsort(descending=True, stable=True)[:most]
    lesser = (torch.arange(len(best)) >= most // 2) & (len(value) > most)
    return best, lesser


def _suggested(text: Tensor, graph: KnowledgeGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Find the aliases that words suggest.

    Returns:
        The node of each, the share of its word that is expected to name it, and whether
        half of ``COMMON`` lets it in, (M,) each.
    """
    longest = graph.aliases.shape[2]
    words, node, position, place = graph.aliases_with(text, longest, COMMON)
    around = F.pad(text, (longest, longest), value=-1).unfold(0, longest, 1)
    standing = (words == around[position + longest - place]) & (words != 0)
    whole = (standing == (words != 0)).all(-1)
    # A word more is worth a nat: three or six find no more.
    odds = (standing.sum(-1) + whole).double().exp()
    total = odds.new_zeros(len(text)).index_add(0, position, odds)
    number = torch.bincount(position, minlength=len(text))
    return node, odds / total[position], (number <= COMMON // 2)[position]
