"""The edges of lattices as columns, and what the rest of a string is expected to cost.

Draws follow the network's own next token among those that go on with the string, times
what the canonical segmentation pays for the string that is left. Every segmentation has
a probability that is known, which random merges (BPE-dropout) do not give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.wrappers.tokens.lattice import (
    BEGIN,
    OVERRUN,
    SegmentationLattice,
)

Floats = NDArray[np.float64]


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
        first, ends, start = [0], list[bool](), list[int]()
        tokens, nexts, fewest, overrun = (list[int]() for _ in range(4))
        overrun_first = [0]
        for lattice in (stretch.lattice for stretch in stretches):
            offset = len(ends) - BEGIN
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
                ends.append(lattice.ends(node))
        log_rest = np.concatenate([stretch.log_rest for stretch in stretches])
        return cls(
            torch.tensor(first),
            torch.tensor(ends),
            torch.from_numpy(log_rest),
            *(
                torch.tensor(column, dtype=torch.long)
                for column in (tokens, nexts, fewest, overrun, overrun_first, start)
            ),
        )

    def look_ahead(self) -> Tensor:
        """Return log psi of every edge, nats, (E,), beside what p gives.

        q(token | path) is in proportion to p(token | path) psi, where log psi is
        ``log_rest``: a share of a token for a part of its bytes.
        """
        ahead = self.log_rest[self.nexts]
        return ahead.masked_fill(self.tokens == OVERRUN, 0.0)
