"""Proposals of segmentations, one token at a time.

``lm``: the network's own next token among those that go on with the string, at a
temperature. It takes a short token as readily as a long one of the same probability,
though the rest of the long one is still to be paid. ``ahead``: the same, times what the
canonical segmentation pays for the string that is left. ``lattice``: a unigram model of
tokens, with what it makes of the rest of the string, which asks the network nothing.
All give every segmentation a probability that is known, which random merges
(BPE-dropout) do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.wrappers.tokens.lattice import (
    BEGIN,
    OVERRUN,
    SegmentationLattice,
)

Floats = NDArray[np.float64]


def frequencies(tokenizer: PreTrainedTokenizerBase, size: int) -> Floats:
    """Return log-frequencies of tokens, nats, as the tokenizer's training left them.

    A unigram tokenizer knows them; one of merges has its tokens in the order of their
    frequency, which Zipf's law turns into one.
    """
    backend: Any = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    found: Floats = -np.log(np.arange(size, dtype=np.float64) + 1)
    if model["type"] == "Unigram":
        for token, (_, score) in enumerate(model["vocab"][:size]):
            found[token] = score
    return found


@dataclass(frozen=True)
class Stretch:
    """A string after given tokens, with its canonical segmentation."""

    given: tuple[int, ...]
    lattice: SegmentationLattice
    canonical: tuple[int, ...]
    """Tokens, those of the end included."""
    scores: tuple[float, ...]
    """log p of each, nats."""
    room: int
    """The most tokens of a segmentation that the network's window holds."""

    @property
    def log_p(self) -> float:
        """Log p of the canonical segmentation, nats."""
        return math.fsum(self.scores)

    @cached_property
    def log_rest(self) -> Floats:
        """What the canonical segmentation pays for what follows each node, nats.

        Inside one of its tokens every byte pays an equal share.
        """
        nodes = [self.lattice.start, *self.lattice.nodes(self.canonical)]
        # One that is impossible guides search and draws as if it paid what others do.
        paid = [score for score in self.scores if score > -math.inf]
        usual = math.fsum(paid) / max(1, len(paid))
        scores = [score if score > -math.inf else usual for score in self.scores]
        rest = [*accumulate(reversed(scores), initial=0.0)][::-1]
        return np.interp(np.arange(BEGIN, self.lattice.final + 1), nodes, rest)


class LatticeEdges(NamedTuple):
    """The edges of the lattices of texts, of one after the other, node by node.

    Where paths of a prefix may overrun it, a node's last edge stands for all tokens
    that do.
    """

    first: Tensor
    """The first edge of each of N nodes, and the end, (N + 1,)."""
    place: Tensor
    """The node of each in its lattice, from ``BEGIN``, (N,)."""
    ends: Tensor
    """Whether all is written there, (N,)."""
    log_rest: Tensor
    """What the canonical segmentation pays for what follows, nats, (N,)."""
    tokens: Tensor
    """Of each edge, (E,); ``OVERRUN``: any that overruns the string."""
    nexts: Tensor
    """The node that each leads to, (E,)."""
    fewest: Tensor
    """The fewest tokens by which a path from there ends, (E,)."""
    overrun: Tensor
    """Tokens that overrun a string, those of an edge side by side."""
    overrun_first: Tensor
    """The first of each edge, and the end, (E + 1,)."""
    start: Tensor
    """The first node of each text."""

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> LatticeEdges:
        """Number the nodes and edges of texts."""
        first, place, ends, start = [0], list[int](), list[bool](), list[int]()
        tokens, nexts, fewest, overrun = (list[int]() for _ in range(4))
        overrun_first = [0]
        for lattice in (stretch.lattice for stretch in stretches):
            offset = len(place) - BEGIN
            start.append(lattice.start + offset)
            for node in range(BEGIN, lattice.final + 1):
                edges = lattice.onward(node)
                overrun_first += [len(overrun)] * len(edges)
                if node in lattice.fewest and (over := lattice.overrun(node)):
                    edges.append((OVERRUN, lattice.final))
                    overrun += over
                    overrun_first.append(len(overrun))
                tokens += [token for token, _ in edges]
                nexts += [after + offset for _, after in edges]
                fewest += [lattice.fewest.get(after, 0) for _, after in edges]
                first.append(len(tokens))
                place.append(node)
                ends.append(lattice.ends(node))
        log_rest = np.concatenate([stretch.log_rest for stretch in stretches])
        return cls(
            torch.tensor(first),
            torch.tensor(place),
            torch.tensor(ends),
            torch.from_numpy(log_rest),
            *(
                torch.tensor(column, dtype=torch.long)
                for column in (tokens, nexts, fewest, overrun, overrun_first, start)
            ),
        )

    def look_ahead(self, temperature: float) -> Tensor:
        """Return log psi / temperature of every edge, nats, (E,), beside what p gives.

        q(token | path) is in proportion to (p(token | path) psi)^(1 / temperature),
        where log psi is ``log_rest``: a share of a token for a part of its bytes.
        """
        ahead = self.log_rest[self.nexts].masked_fill(self.tokens == OVERRUN, 0.0)
        return ahead / temperature

    def unigram(self, frequencies: Floats, temperature: float) -> Tensor:
        """Return log q of every edge, nats, (E,), but for a constant of its node.

        q(z) is in proportion to prod_i f(z_i)^(1 / temperature), drawn left to right:
        an edge is as probable as its token times the sum over all ways to go on.

        Args:
            frequencies: log f of each token, nats.
            temperature: Of the proposal.
        """
        scaled, tokens = frequencies / temperature, self.tokens.numpy()
        nexts, overrun = self.nexts.numpy(), self.overrun.numpy()
        scores = scaled[tokens]
        for edge in np.flatnonzero(tokens == OVERRUN):
            begin, end = self.overrun_first[edge : edge + 2].tolist()
            scores[edge] = np.logaddexp.reduce(scaled[overrun[begin:end]])
        rest, first = np.where(self.ends.numpy(), 0.0, -np.inf), self.first.tolist()
        for node in range(len(rest) - 1, -1, -1):
            begin, end = first[node : node + 2]
            if begin < end:
                scores[begin:end] += rest[nexts[begin:end]]
                one = np.logaddexp.reduce(scores[begin:end])
                rest[node] = np.logaddexp(one, rest[node])
        return torch.from_numpy(scores)
