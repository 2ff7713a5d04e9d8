r"""Segmentations of one text under search, extended a token at a time.

A beam keeps those whose probability so far, times what the canonical segmentation pays
for the rest, is largest; the canonical one is always among them. Draws follow a
proposal, each with random numbers of its own.

Draws may be particles, chosen anew in proportion to w psi, where psi is what the
canonical segmentation pays for the rest; what psi gave is taken back (see
``inference.smc``, whose filters these are).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.inference.smc import RESAMPLING_LANE
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice
from lm_latent_eval.wrappers.tokens.proposals import Floats, Numbers, PathProposal

OVERRUN = -1
"""In the place of a token: any that overruns the string."""

Path: TypeAlias = "tuple[Path, int, int] | None"
"""The path before, its next token, and the node after that."""
Ending = tuple[int, int, int]
"""The length of a segmentation, and the row and token that it ends by."""


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
    def _rest(self) -> tuple[list[int], list[float]]:
        nodes = [self.lattice.start, *self.lattice.nodes(self.canonical)]
        # One that is impossible guides search and draws as if it paid what others do.
        paid = [score for score in self.scores if score > -math.inf]
        usual = math.fsum(paid) / max(1, len(paid))
        scores = [score if score > -math.inf else usual for score in self.scores]
        return nodes, [*accumulate(reversed(scores), initial=0.0)][::-1]

    def log_rest(self, nodes: Numbers) -> Floats:
        """Return what the canonical segmentation pays for what follows nodes, nats.

        Inside one of its tokens every byte pays an equal share.
        """
        return np.interp(nodes, *self._rest)


@dataclass(frozen=True)
class WalkPlan:
    """How much is looked at."""

    width: int | None
    """Segmentations that the beam keeps; None keeps all, 0 searches for none."""
    num_draws: int = 0
    filters: int = 0
    """Groups whose draws are chosen anew as the text goes on; 0: none are."""


@dataclass(eq=False)
class Spot:
    """The beginning of a segmentation."""

    row: int
    """Which sequence of the reading it is."""
    node: int
    log_p: float = 0.0
    log_q: float = 0.0
    path: Path = None
    canonical: bool = True
    searched: bool = False
    """Whether the beam keeps it."""
    edges: Numbers = field(default_factory=lambda: np.empty(0, int))
    """Which edges leave room for the rest of the string."""
    ending: Ending | None = None
    """What it is once it has ended."""


class SegmentationWalk:
    """What is found and drawn of one text."""

    def __init__(
        self,
        stretch: Stretch,
        plan: WalkPlan,
        proposal: PathProposal,
        key: int,
        row: int,
    ) -> None:
        """Begin.

        Args:
            stretch: The text.
            plan: How much to look at.
            proposal: What draws follow.
            key: Of the random numbers.
            row: Where the reading has what is given.
        """
        self.stretch, self.plan = stretch, plan
        self._proposal, self._key = proposal, key
        begin = Spot(row, stretch.lattice.start, searched=plan.width != 0)
        self.spots = [begin]
        """Those that go on."""
        self.found: list[Spot] = []
        """What the beam has found, ended and distinct."""
        self.pruned = False
        """Whether the beam has dropped anything."""
        self.draws = [begin] * plan.num_draws
        """Where each draw is."""
        self.log_w = np.zeros(plan.num_draws)
        """Their log-weights, nats."""
        self._depth = 0

    def ask(self) -> Iterator[tuple[int, int]]:
        """Yield rows and tokens whose probabilities ``step`` is to be given."""
        room = self.stretch.room - self._depth - 1
        lattice = self.stretch.lattice
        for spot in self.spots:
            edges = lattice.edges[spot.node]
            fits = [lattice.fewest[after] <= room for after in edges.nexts]
            spot.edges = np.flatnonzero(fits)
            for token in edges.tokens[spot.edges].tolist():
                yield spot.row, token

    def step(
        self, log_p: Floats, every_log_p: Tensor, rows: dict[tuple[int, int], int]
    ) -> None:
        """Go on by a token.

        Args:
            log_p: What the network gives to what was asked for, nats.
            every_log_p: Of every token after each row of the reading, nats, (R, V).
            rows: Row and token -> row to read next; grows by what is needed.
        """
        uniform = uniforms(self._key, (0, self._depth), max(1, self.plan.num_draws))
        following: dict[Ending, Spot] = {}
        drawn: dict[Spot, list[int]] = {}
        for draw, spot in enumerate(self.draws):
            drawn.setdefault(spot, []).append(draw)
        asked = np.split(log_p, np.cumsum([len(s.edges) for s in self.spots])[:-1])
        for spot, given in zip(self.spots, asked, strict=True):
            scores = np.append(given, self._overrun(spot, every_log_p))
            possible = np.flatnonzero(scores > -np.inf)
            k = drawn.get(spot)
            if not len(
                possible
            ):  # all that went on from here was too long, or never is
                self.log_w[k or []] = -np.inf
                continue
            proposed = np.full(len(scores), -np.inf)
            asked_for = self._proposal.scores(spot.node, spot.edges, scores)
            proposed[possible] = asked_for[possible]
            log_q = proposed - np.logaddexp.reduce(proposed)
            if spot.searched:
                for choice in possible.tolist():
                    after = self._after(spot, choice, scores, log_q, following)
                    after.searched = True
            if k is not None:
                chosen = np.searchsorted(np.exp(log_q).cumsum(), uniform[k, 0])
                for draw, choice in zip(
                    k, chosen.clip(max=len(scores) - 1), strict=True
                ):
                    self.draws[draw] = self._after(
                        spot, int(choice), scores, log_q, following
                    )
                    self.log_w[draw] += scores[choice] - log_q[choice]
        self._depth += 1
        self._prune(following.values())
        if self.plan.filters:
            self._choose_anew(uniform[:, RESAMPLING_LANE])
        going = {*self.draws}
        self.spots = []
        for (_, row, token), spot in following.items():
            if spot.ending is None and (spot.searched or spot in going):
                spot.row = rows.setdefault((row, token), len(rows))
                self.spots.append(spot)

    def _overrun(self, spot: Spot, every_log_p: Tensor) -> list[float]:
        """Return log p of overrunning the string from a spot, if that is possible."""
        tokens = self.stretch.lattice.edges[spot.node].overrun
        if not len(tokens) or self._depth >= self.stretch.room:
            return []
        log_p = every_log_p[spot.row, torch.from_numpy(tokens).to(every_log_p.device)]
        return [float(log_p.logsumexp(-1))]

    def _after(
        self,
        spot: Spot,
        choice: int,
        log_p: Floats,
        log_q: Floats,
        following: dict[Ending, Spot],
    ) -> Spot:
        """Return where a choice leads to, one spot however many choose it."""
        lattice = self.stretch.lattice
        if choice < len(spot.edges):
            edge, edges = spot.edges[choice], lattice.edges[spot.node]
            token, node = int(edges.tokens[edge]), edges.nexts[edge]
        else:
            token, node = OVERRUN, lattice.final
        ending = (self._depth, spot.row, token)
        if ending not in following:
            canonical = self.stretch.canonical[self._depth : self._depth + 1]
            following[ending] = Spot(
                spot.row,
                node,
                spot.log_p + float(log_p[choice]),
                spot.log_q + float(log_q[choice]),
                (spot.path, token, node),
                spot.canonical and canonical == (token,),
                ending=ending if lattice.ends(node) else None,
            )
        return following[ending]

    def _prune(self, following: Iterable[Spot]) -> None:
        """Keep what ended, and the most probable of what goes on."""
        searched = [spot for spot in following if spot.searched]
        self.found += [spot for spot in searched if spot.ending]
        going = [spot for spot in searched if not spot.ending]
        if self.plan.width is None or len(going) <= self.plan.width:
            return
        rest = self.stretch.log_rest(np.array([spot.node for spot in going]))
        score = [s.log_p + ahead for s, ahead in zip(going, rest, strict=True)]
        order = sorted(
            range(len(going)), key=lambda n: (not going[n].canonical, -score[n])
        )
        for n in order[self.plan.width :]:
            going[n].searched = False
        self.pruned = True

    def _choose_anew(self, uniform: Floats) -> None:
        """Choose particles where a filter's effective sample size is below a half.

        Systematic resampling, as ``ParticleFilter`` has it.
        """
        shape = (self.plan.filters, -1)
        # Nothing is left to pay at the end.
        psi = self.stretch.log_rest(np.array([spot.node for spot in self.draws]))
        draws, log_w = list(self.draws), self.log_w
        log_v = (log_w + psi).reshape(shape)
        size = log_v.shape[1]
        for first, row in zip(range(0, len(draws), size), log_v, strict=True):
            total = np.logaddexp.reduce(row)
            if total == -np.inf:
                continue
            weight = np.exp(row - total)
            if (weight**2).sum() * size <= 2:
                continue
            points = (np.arange(size) + uniform[first]) / size
            chosen = np.searchsorted(weight.cumsum(), points).clip(max=size - 1) + first
            self.draws[first : first + size] = [draws[k] for k in chosen]
            even = total - math.log(size)
            log_w[first : first + size] = even - psi[chosen]
