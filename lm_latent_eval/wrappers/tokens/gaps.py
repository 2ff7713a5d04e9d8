"""Gap between the canonical segmentation and the string, by place.

    gap = log p(s) - log p(canonical) = -log(share of p(s) on the canonical one)

The other segmentations differ from it in places: canonical tokens that one of them
writes as other tokens. A place counts for the share of p(s) that the segmentations with
it have, and the gap of a text is divided among its places in proportion to that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.lattice import OVERRUN
from lm_latent_eval.wrappers.tokens.scorer import TokensScorer
from lm_latent_eval.wrappers.tokens.walk import Path, SegmentationWalk, Stretch

Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Canonical tokens, and those that another segmentation has instead."""


@dataclass(frozen=True)
class Gap:
    """A text by its canonical segmentation, and by all."""

    estimate: Estimate
    """Log p of the string, nats."""
    canonical: float
    """Log p of its canonical segmentation, nats."""
    num_bytes: int
    places: dict[Place, float]
    """Where others differ -> the share of p(s) that differs there."""

    @property
    def nats(self) -> float:
        """The gap; its error is the estimate's."""
        return self.estimate.log_evidence - self.canonical

    @property
    def percent(self) -> float:
        """The gap as a share of the canonical segmentation's bits."""
        return -100 * self.nats / self.canonical

    @property
    def percent_stderr(self) -> float | None:
        """Its Monte Carlo error; None where it cannot be estimated."""
        error = self.estimate.stderr
        return None if error is None else -100 * error / self.canonical

    @property
    def share(self) -> float:
        """Of p(s) on the canonical segmentation."""
        return math.exp(min(-self.nats, 0.0))

    def bits_per_byte(self, log_p: float) -> float:
        """Convert from nats."""
        return -log_p / math.log(2) / self.num_bytes

    @classmethod
    def total(cls, gaps: Sequence[Gap]) -> Gap:
        """Put texts together; places are counted in nats of the gap then."""
        places = defaultdict[Place, float](float)
        for gap in gaps:
            everywhere = math.fsum(gap.places.values())
            for place, share in gap.places.items():
                places[place] += gap.nats * share / everywhere
        return cls(
            Estimate.product([gap.estimate for gap in gaps]),
            math.fsum(gap.canonical for gap in gaps),
            sum(gap.num_bytes for gap in gaps),
            dict(sorted(places.items(), key=lambda item: -item[1])),
        )


def find(scorer: TokensScorer, texts: Sequence[str]) -> Iterator[Gap]:
    """Yield the gap of every text, in their order.

    Args:
        scorer: Of any estimator but ``canonical``.
        texts: Strings.

    Raises:
        ValueError: If a text cannot be scored.
    """
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
    for answer, walks in scorer.explore(queries):
        places = defaultdict[Place, float](float)
        for walk in walks:
            for path, share in _shares(walk):
                for place in _places(walk.stretch, path):
                    places[place] += share
        yield Gap(
            answer.estimate,
            answer.canonical or 0.0,
            len(texts[answer.index].encode()),
            dict(places),
        )


def _shares(walk: SegmentationWalk) -> Iterator[tuple[Path, float]]:
    """Yield segmentations, found and drawn, with their estimated shares of p(s)."""
    inside = {spot.ending for spot in walk.found}
    outside = [
        (spot.path, log_w - math.log(len(walk.draws)))
        for spot, log_w in zip(walk.draws, walk.log_w.tolist(), strict=True)
        if spot.ending not in inside
    ]
    everything = [(spot.path, spot.log_p) for spot in walk.found] + outside
    log_p = np.array([log for _, log in everything])
    shares = np.exp(log_p - np.logaddexp.reduce(log_p))
    yield from zip((path for path, _ in everything), shares.tolist(), strict=True)


def _places(stretch: Stretch, path: Path) -> Iterator[Place]:
    """Yield where a segmentation differs from the canonical one.

    A token that overruns the string stands for all that do, and is no other one.
    """
    nodes = stretch.lattice.nodes(stretch.canonical)
    plain = dict(zip(nodes, stretch.canonical, strict=True))
    theirs = dict(_walked(path))
    common = sorted(plain.keys() & theirs.keys())
    before = stretch.lattice.start
    for node in common:
        one, other = _between(plain, before, node), _between(theirs, before, node)
        if one != other and OVERRUN not in other:
            yield one, other
        before = node


def _walked(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the node after each token of a path, and the token, the last one first."""
    while path is not None:
        path, token, node = path
        yield node, token


def _between(tokens: dict[int, int], first: int, last: int) -> tuple[int, ...]:
    return tuple(tokens[node] for node in sorted(tokens) if first < node <= last)
