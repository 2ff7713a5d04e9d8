"""How a segmentation is drawn, one token at a time.

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
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.wrappers.tokens.lattice import (
    BEGIN,
    OVERRUN,
    SegmentationLattice,
)

Floats = NDArray[np.float64]


class PathProposal(Protocol):
    """Scores how a path goes on from a node, edge by edge."""

    @property
    def power(self) -> float:
        """Of what the network gives to a token."""
        ...

    def scores(self) -> Floats:
        """Return what is beside that, nats, of every edge of the lattice, (E,)."""
        ...


@dataclass(frozen=True)
class TemperedNextToken:
    """q(token | path) in proportion to p(token | path)^(1 / temperature)."""

    lattice: SegmentationLattice
    temperature: float

    @property
    def power(self) -> float:
        return 1 / self.temperature

    def scores(self) -> Floats:
        return np.zeros(len(self.lattice.table.tokens))


@dataclass(frozen=True)
class LookAhead:
    """q(token | path) in proportion to (p(token | path) psi)^(1 / temperature).

    psi is what the canonical segmentation pays for what is left after the token, a
    share of a token for a part of its bytes.
    """

    lattice: SegmentationLattice
    log_rest: Floats
    """Log psi of each node, nats."""
    temperature: float

    @property
    def power(self) -> float:
        return 1 / self.temperature

    def scores(self) -> Floats:
        table = self.lattice.table
        ahead = np.where(table.tokens == OVERRUN, 0.0, self.log_rest[table.nexts])
        return ahead / self.temperature


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
    power: ClassVar[float] = 0.0

    def scores(self) -> Floats:
        table, scaled = self.lattice.table, self.frequencies / self.temperature
        scores = scaled[table.tokens]
        for edge in np.flatnonzero(table.tokens == OVERRUN):
            first, end = table.overrun_first[edge : edge + 2]
            scores[edge] = np.logaddexp.reduce(scaled[table.overrun[first:end]])
        rest = np.full(len(table.first) - 1, -np.inf)
        rest[self.lattice.final - BEGIN] = 0.0
        for node in range(len(rest) - 1, -1, -1):
            first, end = table.first[node : node + 2]
            if first < end:
                scores[first:end] += rest[table.nexts[first:end]]
                one = np.logaddexp.reduce(scores[first:end])
                rest[node] = np.logaddexp(one, rest[node])
        return scores


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
