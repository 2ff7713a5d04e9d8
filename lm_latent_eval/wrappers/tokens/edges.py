"""Edges of lattices as columns, and the expected score of the rest of a string.

Draws follow the network's next-token distribution over the edges of a node, times the
canonical segmentation's probability of the rest. Every segmentation has a known
probability, which random merges (BPE-dropout) do not give.
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
    """Canonical tokens, those of the end included."""
    scores: tuple[float, ...]
    """Log p of each, nats."""
    room: int
    """Largest number of tokens of a segmentation that fits the network's window."""

    @property
    def log_p(self) -> float:
        """Log p of the canonical segmentation, nats."""
        return math.fsum(self.scores)

    @cached_property
    def log_rest(self) -> Floats:
        """Canonical score of the rest of the string after each node, nats.

        Inside a canonical token every byte has an equal share.
        """
        nodes = [self.lattice.start, *self.lattice.nodes(self.canonical)]
        # An impossible token gets the mean score, to guide search and draws.
        finite = [score for score in self.scores if score > -math.inf]
        mean = math.fsum(finite) / max(1, len(finite))
        scores = [score if score > -math.inf else mean for score in self.scores]
        rest = [*accumulate(reversed(scores), initial=0.0)][::-1]
        return np.interp(np.arange(BEGIN, self.lattice.final + 1), nodes, rest)


class LatticeEdges(NamedTuple):
    """Edges of the lattices of several texts, node by node.

    A node's last edge may stand for all tokens that overrun a prefix.
    """

    first: Tensor
    """First edge of each of N nodes, and the end, (N + 1,)."""
    ends: Tensor
    """Whether all is written at each node, (N,)."""
    log_rest: Tensor
    """Canonical score of the rest, nats, (N,)."""
    tokens: Tensor
    """Token of each edge, (E,); ``OVERRUN``: any that overruns the string."""
    nexts: Tensor
    """Target node of each edge, (E,)."""
    fewest: Tensor
    """Smallest number of tokens of a path from the target, (E,)."""
    overrun: Tensor
    """Tokens that overrun a string, grouped by edge."""
    overrun_first: Tensor
    """First of them of each edge, and the end, (E + 1,)."""
    start: Tensor
    """First node of each text."""

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> LatticeEdges:
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
        """Log psi of every edge, nats, (E,).

        q(token | path) is proportional to p(token | path) psi with log psi =
        ``log_rest``, where a part of a canonical token has a share by its bytes.
        """
        ahead = self.log_rest[self.nexts]
        return ahead.masked_fill(self.tokens == OVERRUN, 0.0)
