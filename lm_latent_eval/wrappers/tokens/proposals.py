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
from collections.abc import Iterable, Sequence
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


def look_ahead(
    lattice: SegmentationLattice, log_rest: Floats, temperature: float
) -> Floats:
    """Return log psi / temperature of every edge, nats, (E,), beside what p gives.

    q(token | path) is in proportion to (p(token | path) psi)^(1 / temperature); psi is
    what the canonical segmentation pays for what is left after the token, a share of a
    token for a part of its bytes; or 1, for the network's own next token.

    Args:
        lattice: The segmentations.
        log_rest: Log psi of each node, nats.
        temperature: Of the proposal.
    """
    table = lattice.table
    ahead = np.where(table.tokens == OVERRUN, 0.0, log_rest[table.nexts])
    return ahead / temperature


def unigram(
    lattice: SegmentationLattice, frequencies: Floats, temperature: float
) -> Floats:
    """Return log q of every edge, nats, (E,), but for a constant of its node.

    q(z) is in proportion to prod_i f(z_i)^(1 / temperature), drawn left to right: an
    edge is as probable as its token times the sum over all ways to go on after it.

    Args:
        lattice: The segmentations.
        frequencies: log f of each token, nats.
        temperature: Of the proposal.
    """
    table, scaled = lattice.table, frequencies / temperature
    scores = scaled[table.tokens]
    for edge in np.flatnonzero(table.tokens == OVERRUN):
        first, end = table.overrun_first[edge : edge + 2]
        scores[edge] = np.logaddexp.reduce(scaled[table.overrun[first:end]])
    rest = np.full(len(table.first) - 1, -np.inf)
    rest[lattice.final - BEGIN] = 0.0
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
    """The edges of several lattices, end to end; nodes count through all of them."""

    first: Tensor
    tokens: Tensor
    nexts: Tensor
    fewest: Tensor
    overrun: Tensor
    overrun_first: Tensor
    overruns: bool
    """Whether any does."""
    place: Tensor
    """The node of each in its text."""
    ends: Tensor
    """Whether all is written at a node."""
    log_rest: Tensor
    """Of each node, nats."""
    start: Tensor
    """The first node of each text."""
    power: float
    """Of what the network gives to a token, in the proposal."""
    scores: Tensor
    """What the proposal has beside that, nats."""

    @classmethod
    def of(
        cls, stretches: Sequence[Stretch], power: float, scores: Sequence[Floats]
    ) -> LatticeEdges:
        """Put the lattices of texts end to end, with their proposal."""
        lattices = [stretch.lattice for stretch in stretches]
        tables = [lattice.table for lattice in lattices]
        nodes = _offsets(len(table.first) - 1 for table in tables)
        edges = _offsets(len(table.tokens) for table in tables)
        overrun = _offsets(len(table.overrun) for table in tables)
        final = np.array([lattice.final - BEGIN for lattice in lattices])
        start = np.array([lattice.start - BEGIN for lattice in lattices])
        place = [np.arange(BEGIN, lattice.final + 1) for lattice in lattices]
        ends = np.zeros(nodes[-1], bool)
        ends[nodes[:-1] + final] = True
        ends[nodes[:-1][final == -BEGIN]] = True  # the beginning of an empty string
        parts = (
            _joined([table.first[:-1] for table in tables], edges),
            _joined([table.tokens for table in tables]),
            _joined([table.nexts for table in tables], nodes),
            _joined([table.fewest for table in tables]),
            _joined([table.overrun for table in tables]),
            _joined([table.overrun_first[:-1] for table in tables], overrun),
        )
        first, tokens, nexts, fewest, over, over_first = map(torch.from_numpy, parts)
        return cls(
            torch.cat([first, torch.tensor([edges[-1]])]),
            tokens,
            nexts,
            fewest,
            over,
            torch.cat([over_first, torch.tensor([overrun[-1]])]),
            bool(overrun[-1]),
            torch.from_numpy(_joined(place)),
            torch.from_numpy(ends),
            torch.from_numpy(_joined([stretch.log_rest for stretch in stretches])),
            torch.from_numpy(nodes[:-1] + start),
            power,
            torch.from_numpy(_joined(scores)),
        )


def _offsets(sizes: Iterable[int]) -> NDArray[np.int64]:
    """Return where each of several parts begins, and the end."""
    return np.array([0, *accumulate(sizes)], int)


def _joined(
    parts: Sequence[NDArray[np.generic]], offsets: NDArray[np.int64] | None = None
) -> NDArray[Any]:
    """Put parts end to end, each of which counts from an offset."""
    if offsets is None:
        return np.concatenate(parts)
    return np.concatenate([p + n for p, n in zip(parts, offsets[:-1], strict=True)])
