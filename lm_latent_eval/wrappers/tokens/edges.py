r"""Edges of lattices as columns, with a look-ahead over all segmentations of the rest.

What the network gives an edge depends on all tokens before it. For the look-ahead it is
read after one of the ways to reach the edge's node: nodes on the canonical path after
the canonical tokens before them, others after their last few tokens. With these
:math:`s_e`, the look-ahead of a node sums over all ways to write what follows it:

.. math::
    \psi_n = \log \sum_{e: n \to m} e^{s_e + \psi_m}, \qquad \psi_{\text{final}} = 0

It would be exact if the network forgot everything but where it is in the string.
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
    BEGIN,
    OVERRUN,
    SegmentationLattice,
)

BEFORE = 3
"""Number of tokens before a node that a segmentation off the canonical path is read
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

    def contexts(self) -> dict[int, Tokens]:
        """Node off the canonical path -> last tokens of a path to it.

        The path leaves the canonical one by as few tokens as possible.
        """
        path = (*self.given, *self.canonical)
        border = [self.lattice.start, *self.lattice.nodes(self.canonical)]
        off = dict.fromkeys(border, 0)
        last = {
            node: path[: len(self.given) + n][-BEFORE - 1 :]
            for n, node in enumerate(border)
        }
        for node in sorted(self.lattice.fewest):
            for token, after in self.lattice.onward(node):
                if off.get(after, math.inf) > off[node] + 1:
                    off[after] = off[node] + 1
                    last[after] = (*last[node], token)[-BEFORE - 1 :]
        # A network expects what texts begin with before all else.
        return {
            node: (*self.given[: len(tokens) > BEFORE], *tokens)
            for node, tokens in last.items()
            if off[node]
        }


class LatticeEdges(NamedTuple):
    """Edges of the lattices of several texts, node by node.

    A node's last edge may stand for all tokens that overrun a prefix.
    """

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
        for stretch in stretches:
            lattice, offset = stretch.lattice, len(ends) - BEGIN
            start.append(lattice.start + offset)
            path = [lattice.start, *lattice.nodes(stretch.canonical)]
            own = {*zip(path, stretch.canonical, strict=False)}
            for node in range(BEGIN, lattice.final + 1):
                onward = lattice.onward(node)
                edges = [(token, [token], after) for token, after in onward]
                if node in lattice.fewest and (over := lattice.overrun(node)):
                    edges.append((OVERRUN, over, lattice.final))
                for name, written, after in edges:
                    tokens += written
                    first_token.append(len(tokens))
                    nexts.append(after + offset)
                    fewest.append(lattice.fewest.get(after, 0))
                    canonical.append((node, name) in own)
                first.append(len(nexts))
                ends.append(lattice.ends(node))
        return cls(
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
        for node, row, log_p in read(reader, stretches):
            edge, which = expanded(edges.first[node], edges.first[node + 1])
            scores[edge] = edges.log_p(log_p, row[which], edge)
    return np.maximum(scores, LEAST)


@torch.inference_mode()
def _canonical_paths(
    reader: CausalReader, stretches: Sequence[Stretch]
) -> Iterator[tuple[Integers, Integers, Tensor]]:
    """Yield nodes, their rows, and log p of next tokens of each row, (R, V)."""
    size = reader.model.config.get_text_config().vocab_size
    offset = _offsets(stretches)
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
            nodes += [node + offset[begin + n] for node in path]
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
    reader: CausalReader, stretches: Sequence[Stretch]
) -> Iterator[tuple[Integers, Integers, Tensor]]:
    """Yield as ``_canonical_paths`` does, of nodes off the canonical path."""
    size = reader.model.config.get_text_config().vocab_size
    nodes = dict[Tokens, list[int]]()
    for stretch, offset in zip(stretches, _offsets(stretches), strict=True):
        for node, tokens in stretch.contexts().items():
            nodes.setdefault(tokens, []).append(node + offset)
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


def _offsets(stretches: Sequence[Stretch]) -> Integers:
    """Index of node 0 of each text among the nodes of all."""
    sizes = [one.lattice.final + 1 - BEGIN for one in stretches]
    return np.cumsum([0, *sizes[:-1]]) - BEGIN


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
