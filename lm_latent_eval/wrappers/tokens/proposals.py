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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class PathProposal(Protocol):
    """Scores how a path goes on from a node."""

    def scores(self, node: int, edges: Numbers, log_p: Floats) -> Floats:
        """Return a score of every way to go on, (E,), or with overrunning (E + 1,).

        Args:
            node: Where the path is.
            edges: Which of the node's edges are possible, (E,).
            log_p: What the network gives to each, and at the end to overrunning if that
                is possible, nats.
        """
        ...


@dataclass(frozen=True)
class TemperedNextToken:
    """q(token | path) in proportion to p(token | path)^(1 / temperature)."""

    temperature: float

    def scores(self, node: int, edges: Numbers, log_p: Floats) -> Floats:
        return log_p / self.temperature


@dataclass(frozen=True)
class LookAhead:
    """q(token | path) in proportion to (p(token | path) psi)^(1 / temperature).

    psi is what the canonical segmentation pays for what is left after the token, a
    share of a token for a part of its bytes.
    """

    lattice: SegmentationLattice
    log_rest: Callable[[Numbers], Floats]
    """Nodes -> log psi, nats."""
    temperature: float

    def scores(self, node: int, edges: Numbers, log_p: Floats) -> Floats:
        nexts = np.array(self.lattice.edges[node].nexts, int)[edges]
        scores = log_p.copy()
        scores[: len(nexts)] += self.log_rest(nexts)
        return scores / self.temperature


@dataclass(frozen=True)
class Unigram:
    """q(z) in proportion to prod_i f(z_i)^(1 / temperature), over a lattice.

    Drawn left to right: an edge is as probable as its token times the sum over all
    ways to go on after it.
    """

    lattice: SegmentationLattice
    frequencies: Floats
    """log f of each token, nats."""
    temperature: float

    @cached_property
    def _ways(self) -> Mapping[int, Floats]:
        """Node -> log of the sum over all paths that begin with each edge, or overrun.

        Overrunning is the last.
        """
        scaled = self.frequencies / self.temperature
        rest: dict[int, float] = {}
        ways: dict[int, Floats] = {}
        for node in sorted(self.lattice.edges, reverse=True):
            edges = self.lattice.edges[node]
            over = np.logaddexp.reduce(scaled[edges.overrun], initial=-np.inf)
            after = np.array([rest[j] for j in edges.nexts])
            ways[node] = np.append(scaled[edges.tokens] + after, over)
            here = 0.0 if self.lattice.ends(node) else -np.inf
            rest[node] = float(np.logaddexp.reduce(ways[node], initial=here))
        return ways

    def scores(self, node: int, edges: Numbers, log_p: Floats) -> Floats:
        ways = self._ways[node]
        overrun = len(log_p) > len(edges)
        return np.append(ways[edges], ways[-1:] if overrun else [])


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
