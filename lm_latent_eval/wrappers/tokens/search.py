r"""Segmentations of texts under search, extended a token at a time.

A beam keeps those whose probability so far, times what the canonical segmentation pays
for the rest, is largest; the canonical one is always among them. Draws follow p times
the same, each with random numbers of its own. Wherever two segmentations begin alike,
for one text or for several options of one question, the network reads that beginning
once.

The loop is not that of ``inference.steps``, where all histories of a text take equally
many steps: here each ends after as many tokens as it has, and leaves its place in the
beam to another. A step is a few operations on arrays, of all texts together; its lists
are those of ``inference.ragged``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.cuts import relative, thinned
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    invert_cdf,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.edges import Floats, LatticeEdges, Stretch
from lm_latent_eval.wrappers.tokens.lattice import OVERRUN


@dataclass(frozen=True)
class WalkPlan:
    """How much is looked at."""

    width: int | None
    """Segmentations that the beam keeps; None keeps all, 0 searches for none."""
    num_draws: int = 0
    passes: tuple[int, ...] = ()
    """Widths of independent passes over segmentations but the canonical one, thinned
    without bias."""


@dataclass(frozen=True)
class Links:
    """How beginnings of segmentations go on one from another, by their numbers."""

    before: NDArray[np.int64]
    """The one that each goes on from; -1 of one without a token."""
    tokens: NDArray[np.int64]
    """The last token of each."""
    nodes: NDArray[np.int64]
    """The node after it."""


@dataclass(frozen=True, eq=False)
class Spot:
    """A segmentation."""

    number: int
    log_p: float
    canonical: bool
    links: Links = field(repr=False)

    @property
    def path(self) -> list[tuple[int, int]]:
        """Its tokens, each with the node after it."""
        found, number = [], self.number
        while (before := int(self.links.before[number])) >= 0:
            token, node = self.links.tokens[number], self.links.nodes[number]
            found.append((int(token), int(node)))
            number = before
        return found[::-1]


@dataclass(eq=False)
class SegmentationWalk:
    """What is found and drawn of one text."""

    stretch: Stretch
    found: list[Spot]
    """What the beam has found, ended and distinct."""
    pruned: bool
    """Whether the beam has dropped anything."""
    log_w: Floats
    """Log-weights of draws, nats, the canonical one's being zero (``-inf``); of passes
    what each found beside the canonical one."""


class _Spots(NamedTuple):
    """Beginnings of segmentations of all texts, (S,) each, on the host."""

    number: Tensor
    """What tells them apart, of those before them, too."""
    text: Tensor
    node: Tensor
    """Among the nodes of all texts."""
    log_p: Tensor
    canonical: Tensor
    searched: Tensor
    """Whether the beam keeps it."""
    log_f: Tensor
    """Log of one over the probability that it survived, nats."""

    def of(self, index: Tensor) -> _Spots:
        """Pick some."""
        return _Spots(*(column[index] for column in self))


class SegmentationSearch:
    """A search for segmentations of several texts, side by side, or draws of them."""

    def __init__(
        self,
        network: Network,
        stretches: Sequence[Stretch],
        plan: WalkPlan,
        keys: Sequence[int],
    ) -> None:
        """Read what is given.

        Args:
            network: What gives tokens their probability.
            stretches: The texts; all are given equally many tokens, at least one.
            plan: How much to look at.
            keys: Of each text's random numbers.
        """
        self.stretches, self.plan = stretches, plan
        roots = {stretch.given: None for stretch in stretches}
        place = {given: row for row, given in enumerate(roots)}
        given = sent(torch.tensor([*roots]), network.device)
        self._reading = network.reader(wide=False).begin(given)
        copies = max(1, len(plan.passes))
        rows = torch.tensor([place[stretch.given] for stretch in stretches])
        self._row = rows.repeat_interleave(copies)
        """Where the reading has each of those that go on."""
        self._edges = LatticeEdges.of(stretches)
        self._log_psi = self._edges.look_ahead()
        self._uniforms = Streams(keys, max(1, plan.num_draws, copies))
        room = torch.tensor([stretch.room for stretch in stretches])
        self._room = room.repeat_interleave(copies)
        self._widths = torch.tensor(plan.passes).repeat(len(stretches))
        texts = torch.arange(len(stretches) * copies)
        start = self._edges.start.repeat_interleave(copies)
        zeros = torch.zeros(len(texts), dtype=torch.float64)
        same = torch.ones_like(texts, dtype=torch.bool)
        self._going = _Spots(
            texts,
            texts,
            start,
            zeros,
            same,
            same & (plan.width != 0),
            zeros,
        )
        """Those that go on."""
        self._depth = 0
        # Canonical tokens; -2 past the end.
        self._canonical = torch.full(
            (len(stretches), 1 + max(len(one.canonical) for one in stretches)), -2
        )
        for text, one in enumerate(stretches):
            self._canonical[text, : len(one.canonical)] = torch.tensor(one.canonical)
        self._canonical = self._canonical.repeat_interleave(copies, 0)
        self._pruned = torch.zeros_like(same)
        self._found: list[_Spots] = []
        self._before, self._token = [texts * 0 - 1], [texts * 0 + OVERRUN]
        self._is_canonical = [same]
        self._node = [start]
        self._count = len(texts)
        self._at = texts.repeat_interleave(plan.num_draws)
        """The spot where each draw is, by number."""
        self._place = self._at.clone()
        """The same among those that go on; -1: it goes on no more."""
        self._log_w = torch.zeros(len(self._at), dtype=torch.float64)

    def run(self) -> list[SegmentationWalk]:
        """Go on until all have ended; return what was found and drawn of each text."""
        while True:
            rows, tokens = self._step(self._reading.log_p)
            if not len(rows):
                return self._finished()
            in_order = torch.equal(rows, torch.arange(len(self._reading.log_p)))
            device = self._reading.reader.device
            rows, tokens = sent(torch.stack([rows, tokens]), device)
            self._reading.read(tokens[:, None], None if in_order else rows)

    def _step(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Go on by a token.

        Args:
            log_p: Of every token after each row of the reading, nats, (R, V).

        Returns:
            The rows that go on, with the token that each does by, (R',) each.
        """
        now, edges = self._going, self._edges
        edge, spot = expand_ranges(edges.first[now.node], edges.first[now.node + 1])
        fits = edges.fewest[edge] + self._depth < self._room[now.text[spot]]
        if not bool(fits.all()):
            edge, spot = edge[fits], spot[fits]
        given = self._given(log_p, self._row[spot], edge)
        possible = given > -torch.inf
        if not bool(possible.all()):
            edge, spot, given = edge[possible], spot[possible], given[possible]
        taken = now.searched[spot]
        if self.plan.num_draws:
            score = given + self._log_psi[edge]
            log_q = score - segment_logsumexp(score, spot, len(now.text))[spot]
            drawn, chosen = self._draw(log_q, spot)
            self._log_w[drawn] += given[chosen] - log_q[chosen]
            taken = taken.index_fill(0, chosen, True)
        (kept,) = taken.nonzero(as_tuple=True)
        edge, spot = edge[kept], spot[kept]
        after = now.of(spot)
        tokens = edges.tokens[edge]
        last = self._canonical.shape[1] - 1
        canonical = self._canonical[after.text, min(self._depth, last)]
        after = _Spots(
            torch.arange(self._count, self._count + len(kept)),
            after.text,
            edges.nexts[edge],
            after.log_p + given[kept],
            after.canonical & (tokens == canonical),
            after.searched,
            after.log_f,
        )
        self._before.append(now.number[spot])
        self._token.append(tokens)
        self._is_canonical.append(after.canonical)
        self._node.append(after.node)
        if self.plan.num_draws:
            place = (taken.cumsum(0) - 1)[chosen]
            self._at[drawn] = after.number[place]
        self._depth += 1
        ended = edges.ends[after.node]
        if self.plan.passes:
            searched, log_f = self._thinned(after, ended)
            after = after._replace(log_f=log_f)
        else:
            searched = self._pruned_to_width(after, ended)
        # Which draws are at what is new; the others have ended.
        here = self._at >= self._count
        wanted = searched.index_fill(0, self._at[here] - self._count, True) & ~ended
        (rest,) = wanted.nonzero(as_tuple=True)
        place = torch.full_like(after.number, -1)
        place[rest] = torch.arange(len(rest))
        self._place.fill_(-1)
        self._place[here] = place[self._at[here] - self._count]
        self._count += len(kept)
        self._going = after._replace(searched=searched).of(rest)
        row, token, which = distinct_pairs(
            self._row[spot[rest]], tokens[rest], log_p.shape[1]
        )
        slot = _slots(row)
        self._row = slot[which]
        order = torch.empty_like(slot)
        order[slot] = torch.arange(len(slot))
        return row[order], token[order]

    def _given(self, log_p: Tensor, row: Tensor, edge: Tensor) -> Tensor:
        """Return what the network gives to edges after rows, nats, on the host."""
        tokens = self._edges.tokens[edge]
        if not len(self._edges.overrun):
            return _picked(log_p, row, tokens)
        (over,) = (tokens == OVERRUN).nonzero(as_tuple=True)
        if not len(over):
            return _picked(log_p, row, tokens)
        first, end = (self._edges.overrun_first[edge[over] + n] for n in range(2))
        place, which = expand_ranges(first, end)
        row = torch.cat([row, row[over][which]])
        tokens = tokens.clamp_min(0)  # what overruns is written over below
        given = _picked(log_p, row, torch.cat([tokens, self._edges.overrun[place]]))
        given, more = given[: len(edge)], given[len(edge) :]
        return given.index_copy(0, over, segment_logsumexp(more, which, len(over)))

    def _draw(self, log_q: Tensor, spot: Tensor) -> tuple[Tensor, Tensor]:
        """Draw how those that go on do; return which do, and their choices."""
        counts = spot.bincount(minlength=len(self._going.text))
        there = self._place >= 0
        alive = there & (counts[self._place.clamp_min(0)] > 0)
        # All that went on from here was too long, or never is.
        self._log_w[there & ~alive] = -torch.inf
        (drawn,) = alive.nonzero(as_tuple=True)
        place = self._place[drawn]
        uniform = self._uniforms(self._depth).flatten(0, 1)[:, 0]
        chosen = invert_cdf(log_q.exp(), spot, len(counts), place, uniform[drawn])
        return drawn, chosen

    def _pruned_to_width(self, after: _Spots, ended: Tensor) -> Tensor:
        """Keep what ended, and the most probable of what goes on; return what is."""
        searched = after.searched
        done = searched & ended
        if bool(done.any()):
            self._found.append(after.of(done))
        if not self.plan.width:
            return searched
        (going,) = (searched & ~ended).nonzero(as_tuple=True)
        text = after.text[going]
        counts = text.bincount(minlength=len(self.stretches))
        if int(counts.max()) <= self.plan.width:
            return searched
        rank = after.log_p[going] + self._edges.log_rest[after.node[going]]
        rank = rank.masked_fill(after.canonical[going], torch.inf)
        order, place = ranked_within(text, rank)
        dropped = going[order[place >= self.plan.width]]
        self._pruned |= counts > self.plan.width
        return searched.index_fill(0, dropped, False)

    def _thinned(self, after: _Spots, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Thin what goes on to the width of each pass; return what does, and log f.

        The canonical segmentation is a term of its own, which no pass pays for.
        """
        done = ended & ~after.canonical
        if bool(done.any()):
            self._found.append(after.of(done))
        (going,) = (~ended & ~after.canonical).nonzero(as_tuple=True)
        group = after.text[going]
        counts = group.bincount(minlength=len(self._widths))
        searched, log_f = torch.ones_like(ended), after.log_f
        if not bool((counts > self._widths).any()):
            return searched, log_f
        self._pruned |= counts > self._widths
        rank = after.log_p[going] + after.log_f[going]
        rank = rank + self._edges.log_rest[after.node[going]]
        first = counts.cumsum(0) - counts
        order = group.argsort(stable=True)
        column = torch.arange(len(going)) - first[group[order]]
        table = rank.new_full((len(counts), int(counts.max())), -torch.inf)
        table[group[order], column] = rank[order]
        uniform = self._uniforms(self._depth).flatten(0, 1)[:, 0]
        most = min(int(self._widths.max()), table.shape[1])
        kept, log_kept = thinned(relative(table), self._widths, most, uniform)
        there = log_kept > -torch.inf
        pass_of, _ = there.nonzero(as_tuple=True)
        chosen = going[order[first[pass_of] + kept[there]]]
        searched = searched.index_fill(0, going, False).index_fill(0, chosen, True)
        log_f = log_f.index_add(0, chosen, log_kept[there])
        return searched, log_f

    def _finished(self) -> list[SegmentationWalk]:
        if self.plan.passes:
            return self._of_passes()
        nodes = torch.cat(self._node)
        links = Links(
            torch.cat(self._before).numpy(),
            torch.cat(self._token).numpy(),
            self._edges.place[nodes].numpy(),
        )
        found: list[list[Spot]] = [[] for _ in self.stretches]
        for spots in self._found:
            columns = spots.text, spots.number, spots.log_p, spots.canonical
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for text, number, log_p, canonical in rows:
                found[text].append(Spot(number, log_p, canonical, links))
        log_w = self._log_w.masked_fill(
            torch.cat(self._is_canonical)[self._at], -torch.inf
        )
        parts = log_w.view(len(self.stretches), -1)
        return [
            SegmentationWalk(
                stretch, found[text], bool(self._pruned[text]), parts[text].numpy()
            )
            for text, stretch in enumerate(self.stretches)
        ]

    def _of_passes(self) -> list[SegmentationWalk]:
        """Sum what each pass has found."""
        number = len(self._widths)
        group, weight = torch.zeros(0).long(), torch.zeros(0).double()
        if self._found:
            group = torch.cat([spots.text for spots in self._found])
            weight = torch.cat([spots.log_p + spots.log_f for spots in self._found])
        log_p = segment_logsumexp(weight, group, number)
        cut = self._pruned.view(len(self.stretches), -1)
        parts = log_p.view(len(self.stretches), -1)
        return [
            SegmentationWalk(stretch, [], bool(cut[n].any()), parts[n].numpy())
            for n, stretch in enumerate(self.stretches)
        ]


def _slots(row: Tensor) -> Tensor:
    """Return a place for each of R rows, that of the row it goes on from if it can.

    Args:
        row: What each goes on from, non-decreasing, (R,).

    Example:
        >>> _slots(torch.tensor([0, 0, 2, 7]))
        tensor([0, 1, 2, 3])
    """
    slot = torch.full_like(row, -1)
    stays = row < len(row)
    stays[1:] &= row[1:] != row[:-1]
    slot[stays] = row[stays]
    free = torch.ones_like(stays)
    free[row[stays]] = False
    slot[~stays] = free.nonzero()[:, 0]
    return slot


def _picked(log_p: Tensor, row: Tensor, token: Tensor) -> Tensor:
    """Return log p of tokens after rows, float64 on the host."""
    there = sent(torch.stack([row, token]), log_p.device)
    (found,) = fetched(log_p[there[0], there[1]])
    return found.double()
