r"""Edges of lattices as columns, with a look-ahead over all segmentations of the rest.

A node of the look-ahead is a place in the string and the last token before it. What the
network gives an edge depends on all tokens before it, and is read after one of the ways
to reach its node: after all canonical tokens where the last one is canonical, else
after the last few tokens. With these :math:`s_e`, the look-ahead of a node sums over
all ways to write what follows it:

.. math::
    \psi_n = \log \sum_{e: n \to m} e^{s_e + \psi_m}, \qquad \psi_{\text{final}} = 0

It would be exact if the network forgot everything but the last token and where it is in
the string.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers, compiled
from lm_latent_eval.devices import fetched, fitting, sent
from lm_latent_eval.networks.causal import AT_ONCE, PADDING, CausalReader, Tokens
from lm_latent_eval.wrappers.tokens.lattice import (
    OVERRUN,
    SegmentationLattice,
)

BEFORE = 2
"""Number of tokens before the last one that a node off the canonical path is read
after."""
LONGEST_BLOCK, BLOCKS = 8, 24
"""Most tokens of a block, and the fewest blocks of a text where one has several tokens:
ranks inside a block do not know what the network gives after its tokens."""
LEAST = -30.0
"""Smallest score of an edge in the look-ahead, nats: what is impossible after these
tokens may be possible after others."""


@dataclass(frozen=True)
class Stretch:
    """A string after given tokens, with its canonical segmentation."""

    given: Tokens
    lattice: SegmentationLattice
    canonical: Tokens
    """Canonical tokens, those of the end included."""
    scores: tuple[float, ...]
    """Log p of each, nats."""
    room: int
    """Largest number of tokens of a segmentation that fits the network's window."""

    @property
    def log_p(self) -> float:
        """Log p of the canonical segmentation, nats."""
        return math.fsum(self.scores)

    @property
    def block(self) -> int:
        """Number of tokens that are read at once: a power of two."""
        size = min(LONGEST_BLOCK, max(1, len(self.canonical) // BLOCKS))
        return 1 << size.bit_length() - 1

    def contexts(self) -> dict[tuple[int, int], Tokens]:
        """Place and last token, not a canonical one -> the last tokens of a path.

        The path leaves the canonical one by as few tokens as possible.
        """
        border = [self.lattice.start, *self.lattice.nodes(self.canonical)]
        own = {*zip(border, self.canonical, strict=False)}
        path, first = (*self.given, *self.canonical), len(self.given)
        last = {node: path[: first + n][-BEFORE:] for n, node in enumerate(border)}
        off, contexts = dict.fromkeys(border, 0), dict[tuple[int, int], Tokens]()
        for node in sorted(self.lattice.fewest):
            for token, after in self.lattice.onward(node):
                tokens = (*last[node], token)
                if off.get(after, math.inf) > off[node] + 1:
                    off[after], last[after] = off[node] + 1, tokens[-BEFORE:]
                if (node, token) not in own and not self.lattice.ends(after):
                    # A network expects what texts begin with before all else.
                    begin = self.given[: tokens[0] != self.given[0]]
                    contexts[after, token] = (*begin, *tokens)
        return contexts


class LatticeEdges(NamedTuple):
    """Edges of the lattices of several texts, node by node.

    A node's last edge may stand for all tokens that overrun a prefix.
    """

    nodes: list[dict[tuple[int, int], int]]
    """Place and last token -> node, of each text."""
    first: Integers
    """First edge of each of N nodes, and the end, (N + 1,)."""
    ends: Booleans
    """Whether all is written at each node, (N,)."""
    start: Integers
    """First node of each text."""
    nexts: Integers
    """Target node of each edge, (E,)."""
    fewest: Integers
    """Smallest number of tokens of a path from the target, (E,)."""
    canonical: Booleans
    """Mask of edges of canonical paths, (E,)."""
    tokens: Integers
    """Tokens of the edges, grouped by edge."""
    first_token: Integers
    """First of them of each edge, and the end, (E + 1,)."""

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> LatticeEdges:
        first, ends, start = [0], list[bool](), list[int]()
        nexts, fewest, tokens = list[int](), list[int](), list[int]()
        canonical, first_token = list[bool](), [0]
        every = list[dict[tuple[int, int], int]]()
        for stretch in stretches:
            lattice, offset = stretch.lattice, len(ends)
            path = [lattice.start, *lattice.nodes(stretch.canonical)]
            own = {*zip(path, stretch.canonical, strict=False)}
            places = sorted({*lattice.fewest, lattice.final})
            edges = {node: _onward(lattice, node) for node in places}
            reached: dict[int, dict[int, None]] = {node: {} for node in edges}
            reached[lattice.start][stretch.given[-1]] = None
            for onward in edges.values():
                for name, _, after in onward:
                    reached[after][name] = None
            states = [(node, last) for node in edges for last in reached[node]]
            nodes = {state: offset + n for n, state in enumerate(states)}
            for node, _ in states:
                for name, written, after in edges[node]:
                    tokens += written
                    first_token.append(len(tokens))
                    nexts.append(nodes[after, name])
                    fewest.append(lattice.fewest.get(after, 0))
                    canonical.append((node, name) in own)
                first.append(len(nexts))
                ends.append(lattice.ends(node))
            start.append(offset)
            every.append(nodes)
        return cls(
            every,
            *map(np.array, (first, ends, start, nexts, fewest, canonical)),
            *map(np.array, (tokens, first_token)),
        )

    def token(self, edge: Integers) -> Integers:
        """Token of edges; the first one of those that overrun a prefix."""
        return self.tokens[self.first_token[edge]]

    def log_p(self, log_p: Tensor, row: Integers, edge: Integers) -> Floats:
        """Log p of edges after rows of a network's log-probabilities, nats."""
        at, which = expanded(self.first_token[edge], self.first_token[edge + 1])
        index = np.stack([row[which], self.tokens[at]])
        rows, tokens = sent(torch.from_numpy(index), log_p.device)
        (value,) = fetched(log_p[rows, tokens])
        each = value.double().numpy()
        if len(each) == len(edge):
            return each
        return np.logaddexp.reduceat(each, np.flatnonzero(np.diff(which, prepend=-1)))


def expected_scores(
    reader: CausalReader, stretches: Sequence[Stretch], edges: LatticeEdges
) -> Floats:
    """Log p of every edge after one of the ways to reach it, nats, (E,)."""
    scores = np.zeros(len(edges.nexts))
    for read in (_canonical_paths, _contexts):
        for node, row, log_p in read(reader, stretches, edges.nodes):
            edge, which = expanded(edges.first[node], edges.first[node + 1])
            scores[edge] = edges.log_p(log_p, row[which], edge)
    return np.maximum(scores, LEAST)


@torch.inference_mode()
def _canonical_paths(
    reader: CausalReader,
    stretches: Sequence[Stretch],
    nodes_of: Sequence[dict[tuple[int, int], int]],
) -> Iterator[tuple[Integers, Integers, Tensor]]:
    """Yield nodes, their rows, and log p of next tokens of each row, (R, V)."""
    size = reader.model.config.get_text_config().vocab_size
    longest = max(len(one.given + one.canonical) for one in stretches) - 1
    together = fitting(longest, size)
    for begin in range(0, len(stretches), together):
        batch = stretches[begin : begin + together]
        padded = np.full((len(batch), longest), PADDING)
        nodes, places = list[int](), list[int]()
        for n, one in enumerate(batch):
            ids = (*one.given, *one.canonical)[:-1]
            padded[n, : len(ids)] = ids
            path = [one.lattice.start, *one.lattice.nodes(one.canonical)][:-1]
            last = (one.given[-1], *one.canonical)
            at = zip(path, last, strict=False)
            nodes += [nodes_of[begin + n][state] for state in at]
            first = n * longest + len(one.given) - 1
            places += range(first, first + len(path))
        read = sent(torch.from_numpy(padded), reader.device)
        logits = reader.call(read).logits.flatten(0, 1)
        rows = max(1, AT_ONCE // size)
        for start in range(0, len(nodes), rows):
            place = torch.tensor(places[start : start + rows])
            node = np.array(nodes[start : start + rows])
            log_p = reader.log_probs(logits[sent(place, logits.device)])
            yield node, np.arange(len(node)), log_p


@torch.inference_mode()
def _contexts(
    reader: CausalReader,
    stretches: Sequence[Stretch],
    nodes_of: Sequence[dict[tuple[int, int], int]],
) -> Iterator[tuple[Integers, Integers, Tensor]]:
    """Yield as ``_canonical_paths`` does, of nodes that other tokens reach."""
    size = reader.model.config.get_text_config().vocab_size
    nodes = dict[Tokens, list[int]]()
    for stretch, node_of in zip(stretches, nodes_of, strict=True):
        for state, tokens in stretch.contexts().items():
            nodes.setdefault(tokens, []).append(node_of[state])
    by_length = dict[int, list[Tokens]]()
    for tokens in nodes:
        by_length.setdefault(len(tokens), []).append(tokens)
    for contexts in by_length.values():
        together = max(1, AT_ONCE // size)
        for begin in range(0, len(contexts), together):
            batch = contexts[begin : begin + together]
            read = sent(torch.tensor(batch), reader.device)
            log_p = reader.log_probs(reader.call(read, last=1).logits[:, -1])
            row = np.repeat(np.arange(len(batch)), [len(nodes[one]) for one in batch])
            yield np.array([n for one in batch for n in nodes[one]]), row, log_p


def _onward(
    lattice: SegmentationLattice, node: int
) -> list[tuple[int, list[int], int]]:
    """Name, tokens and target of each edge of a place."""
    edges = [(token, [token], after) for token, after in lattice.onward(node)]
    if not lattice.ends(node) and (over := lattice.overrun(node)):
        edges.append((OVERRUN, over, lattice.final))
    return edges


@compiled
def look_ahead(
    first: Integers, ends: Booleans, nexts: Integers, scores: Floats
) -> Floats:
    """Log of the sum over all paths from each node, nats, (N,); see the module."""
    ahead = np.full(len(ends), -np.inf)
    for node in range(len(ends) - 1, -1, -1):
        if ends[node]:
            ahead[node] = 0.0
            continue
        peak, total = -np.inf, 0.0
        for edge in range(first[node], first[node + 1]):
            peak = max(peak, scores[edge] + ahead[nexts[edge]])
        if peak > -np.inf:
            for edge in range(first[node], first[node + 1]):
                total += math.exp(scores[edge] + ahead[nexts[edge]] - peak)
            ahead[node] = peak + math.log(total)
    return ahead


def expanded(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Concatenate ranges start[i] .. end[i]-1; return the elements and their ranges."""
    count = end - start
    which = np.repeat(np.arange(len(count)), count)
    element = np.arange(len(which)) - (count.cumsum() - count)[which] + start[which]
    return element, which
