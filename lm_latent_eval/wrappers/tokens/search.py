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
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.pruning import Places, thin_table
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


@dataclass(eq=False)
class SegmentationWalk:
    """What is found or drawn of one text beside its canonical segmentation."""

    stretch: Stretch
    pruned: bool
    """Whether anything was dropped."""
    log_w: Floats
    """Nats: log p of each segmentation that the beam has found, or of all that each
    pass has; or log-weights of draws (``-inf`` of the canonical one)."""


class _Spots(NamedTuple):
    """Beginnings of segmentations of all texts, (S,) each, on the host."""

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
        self._place = texts.repeat_interleave(plan.num_draws)
        """Where each draw is among those that go on; -1: it goes on no more."""
        self._same = torch.ones_like(self._place, dtype=torch.bool)
        """Whether each is the canonical one, as far as it goes."""
        self._log_w = torch.zeros(len(self._place), dtype=torch.float64)

    def run(self) -> list[SegmentationWalk]:
        """Go on until all have ended; return what was found or drawn of each text."""
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
        taken, drawn, chosen = now.searched[spot], spot[:0], spot[:0]
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
            after.text,
            edges.nexts[edge],
            after.log_p + given[kept],
            after.canonical & (tokens == canonical),
            after.searched,
            after.log_f,
        )
        at = (taken.cumsum(0) - 1)[chosen]
        self._same[drawn] = after.canonical[at]
        self._depth += 1
        ended = edges.ends[after.node]
        if self.plan.passes:
            searched, log_f = self._thinned(after, ended)
            after = after._replace(log_f=log_f)
        else:
            searched = self._pruned_to_width(after, ended)
        (rest,) = (searched.index_fill(0, at, True) & ~ended).nonzero(as_tuple=True)
        place = torch.full_like(after.text, -1)
        place[rest] = torch.arange(len(rest))
        self._place.fill_(-1)
        self._place[drawn] = place[at]
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
        done = searched & ended & ~after.canonical
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
        uniform = self._uniforms(self._depth).flatten(0, 1)[:, 0].contiguous()
        width, nothing = self._widths.numpy(), torch.zeros(len(counts)).double().numpy()
        places = Places(width, width, nothing, nothing > 0)
        found = thin_table(table.numpy(), places, uniform.numpy())
        kept, log_kept = map(torch.from_numpy, found)
        there = log_kept > -torch.inf
        pass_of, _ = there.nonzero(as_tuple=True)
        chosen = going[order[first[pass_of] + kept[there]]]
        searched = searched.index_fill(0, going, False).index_fill(0, chosen, True)
        log_f = log_f.index_add(0, chosen, log_kept[there])
        return searched, log_f

    def _finished(self) -> list[SegmentationWalk]:
        number, copies = len(self.stretches), max(1, len(self.plan.passes))
        group, log_p = torch.zeros(0).long(), torch.zeros(0).double()
        if self._found:
            group = torch.cat([spots.text for spots in self._found])
            log_p = torch.cat([spots.log_p + spots.log_f for spots in self._found])
        if self.plan.passes:
            log_w = segment_logsumexp(log_p, group, number * copies)
            parts = log_w.view(number, copies).unbind()
        elif self.plan.num_draws:
            log_w = self._log_w.masked_fill(self._same, -torch.inf)
            parts = log_w.view(number, -1).unbind()
        else:
            order = group.argsort(stable=True)
            sizes = group.bincount(minlength=number).tolist()
            parts = log_p[order].split(sizes)
        pruned = self._pruned.view(number, copies).any(1).tolist()
        return [
            SegmentationWalk(stretch, cut, log_w.numpy())
            for stretch, cut, log_w in zip(self.stretches, pruned, parts, strict=True)
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
