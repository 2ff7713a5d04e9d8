"""Segmentations of texts under search, extended by one token at a time.

A beam keeps the largest products of the probability so far and the canonical score of
the rest; the canonical segmentation is always kept. Draws follow the same product,
each with random numbers of its own. Equal beginnings of segmentations, of one text or
of several options of a question, are read once.

The loop differs from ``inference.steps``, whose histories of a text all take equally
many steps: a segmentation ends after its own number of tokens and frees its slot in
the beam. A step is a few operations on arrays of all texts together, by the lists of
``inference.ragged``.
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
    """Widths of the beam and of the passes, and the number of draws."""

    width: int | None
    """Width of the beam; None keeps all, 0 is no search."""
    num_draws: int = 0
    passes: tuple[int, ...] = ()
    """Widths of independent passes over all but the canonical segmentation, pruned
    without bias."""


@dataclass(eq=False)
class SegmentationWalk:
    """Segmentations of a text that were found or drawn, except the canonical one."""

    stretch: Stretch
    pruned: bool
    """Whether any was dropped."""
    log_w: Floats
    """Log p of each segmentation of the beam, or the sum of each pass, or log-weights
    of draws (``-inf`` for the canonical one), nats."""


class _Spots(NamedTuple):
    """Beginnings of segmentations of all texts, (S,) each, on the host."""

    text: Tensor
    node: Tensor
    """Index among the nodes of all texts."""
    log_p: Tensor
    canonical: Tensor
    searched: Tensor
    """Mask of those that the beam keeps."""
    log_f: Tensor
    """Log of the inverse survival probability, nats."""

    def of(self, index: Tensor) -> _Spots:
        return _Spots(*(column[index] for column in self))


class SegmentationSearch:
    """Search for, or draws of, segmentations of several texts together."""

    def __init__(
        self,
        network: Network,
        stretches: Sequence[Stretch],
        plan: WalkPlan,
        keys: Sequence[int],
    ) -> None:
        """Read the given tokens.

        Args:
            network: The causal LM.
            stretches: The texts, with equally many given tokens, at least one.
            plan: Extent of search and draws.
            keys: Keys of each text's random numbers.
        """
        self.stretches, self.plan = stretches, plan
        roots = {stretch.given: None for stretch in stretches}
        row_of = {given: row for row, given in enumerate(roots)}
        given = sent(torch.tensor([*roots]), network.device)
        self._reading = network.reader(wide=False).begin(given)
        copies = max(1, len(plan.passes))
        rows = torch.tensor([row_of[stretch.given] for stretch in stretches])
        self._row = rows.repeat_interleave(copies)
        """Row of the reading of each active spot."""
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
        self._active = _Spots(
            texts, start, zeros, same, same & (plan.width != 0), zeros
        )
        self._depth = 0
        # Canonical tokens; -2 past the end.
        self._canonical = torch.full(
            (len(stretches), 1 + max(len(one.canonical) for one in stretches)), -2
        )
        for text, one in enumerate(stretches):
            self._canonical[text, : len(one.canonical)] = torch.tensor(one.canonical)
        self._canonical = self._canonical.repeat_interleave(copies, 0)
        self._pruned = torch.zeros_like(same)
        self._ended: list[_Spots] = []
        self._spot = texts.repeat_interleave(plan.num_draws)
        """Active spot of each draw; -1: it has ended."""
        self._same = torch.ones_like(self._spot, dtype=torch.bool)
        """Mask of draws that are canonical so far."""
        self._log_w = torch.zeros(len(self._spot), dtype=torch.float64)

    def run(self) -> list[SegmentationWalk]:
        """Extend all to their ends."""
        while True:
            rows, tokens = self._step(self._reading.log_p)
            if not len(rows):
                return self._finished()
            in_order = torch.equal(rows, torch.arange(len(self._reading.log_p)))
            device = self._reading.reader.device
            rows, tokens = sent(torch.stack([rows, tokens]), device)
            self._reading.read(tokens[:, None], None if in_order else rows)

    def _step(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Extend by one token.

        Args:
            log_p: Next-token log-probabilities of each row of the reading, nats, (R,
                V).

        Returns:
            The rows that continue, and the token of each, (R',).
        """
        now, edges = self._active, self._edges
        edge, spot = expand_ranges(edges.first[now.node], edges.first[now.node + 1])
        fits = edges.fewest[edge] + self._depth < self._room[now.text[spot]]
        if not bool(fits.all()):
            edge, spot = edge[fits], spot[fits]
        given = self._given(log_p, self._row[spot], edge)
        possible = given > -torch.inf
        if not bool(possible.all()):
            edge, spot, given = edge[possible], spot[possible], given[possible]
        kept, drawn, chosen = now.searched[spot], spot[:0], spot[:0]
        if self.plan.num_draws:
            score = given + self._log_psi[edge]
            log_q = score - segment_logsumexp(score, spot, len(now.text))[spot]
            drawn, chosen = self._draw(log_q, spot)
            self._log_w[drawn] += given[chosen] - log_q[chosen]
            kept = kept.index_fill(0, chosen, True)
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
        at = (kept.cumsum(0) - 1)[chosen]
        self._same[drawn] = after.canonical[at]
        self._depth += 1
        ended = edges.ends[after.node]
        if self.plan.passes:
            searched, log_f = self._thinned(after, ended)
            after = after._replace(log_f=log_f)
        else:
            searched = self._pruned_to_width(after, ended)
        (rest,) = (searched.index_fill(0, at, True) & ~ended).nonzero(as_tuple=True)
        new_spot = torch.full_like(after.text, -1)
        new_spot[rest] = torch.arange(len(rest))
        self._spot.fill_(-1)
        self._spot[drawn] = new_spot[at]
        self._active = after._replace(searched=searched).of(rest)
        row, token, which = distinct_pairs(
            self._row[spot[rest]], tokens[rest], log_p.shape[1]
        )
        slot = _slots(row)
        self._row = slot[which]
        order = torch.empty_like(slot)
        order[slot] = torch.arange(len(slot))
        return row[order], token[order]

    def _given(self, log_p: Tensor, row: Tensor, edge: Tensor) -> Tensor:
        """Log p of edges after rows, nats, on the host."""
        tokens = self._edges.tokens[edge]
        if not len(self._edges.overrun):
            return _picked(log_p, row, tokens)
        (over,) = (tokens == OVERRUN).nonzero(as_tuple=True)
        if not len(over):
            return _picked(log_p, row, tokens)
        first, end = (self._edges.overrun_first[edge[over] + n] for n in range(2))
        index, which = expand_ranges(first, end)
        row = torch.cat([row, row[over][which]])
        tokens = tokens.clamp_min(0)  # entries of OVERRUN are replaced below
        given = _picked(log_p, row, torch.cat([tokens, self._edges.overrun[index]]))
        given, more = given[: len(edge)], given[len(edge) :]
        return given.index_copy(0, over, segment_logsumexp(more, which, len(over)))

    def _draw(self, log_q: Tensor, spot: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the edges of active draws; return these draws and their choices."""
        counts = spot.bincount(minlength=len(self._active.text))
        active = self._spot >= 0
        alive = active & (counts[self._spot.clamp_min(0)] > 0)
        # All continuations are too long or impossible.
        self._log_w[active & ~alive] = -torch.inf
        (drawn,) = alive.nonzero(as_tuple=True)
        uniform = self._uniforms(self._depth).flatten(0, 1)[drawn, 0]
        chosen = invert_cdf(log_q.exp(), spot, len(counts), self._spot[drawn], uniform)
        return drawn, chosen

    def _pruned_to_width(self, after: _Spots, ended: Tensor) -> Tensor:
        """Keep the most probable spots of each beam; return their mask."""
        searched = after.searched
        done = searched & ended & ~after.canonical
        if bool(done.any()):
            self._ended.append(after.of(done))
        if not self.plan.width:
            return searched
        (active,) = (searched & ~ended).nonzero(as_tuple=True)
        text = after.text[active]
        counts = text.bincount(minlength=len(self.stretches))
        if int(counts.max()) <= self.plan.width:
            return searched
        rank = after.log_p[active] + self._edges.log_rest[after.node[active]]
        rank = rank.masked_fill(after.canonical[active], torch.inf)
        order, place = ranked_within(text, rank)
        dropped = active[order[place >= self.plan.width]]
        self._pruned |= counts > self.plan.width
        return searched.index_fill(0, dropped, False)

    def _thinned(self, after: _Spots, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Prune each pass to its width without bias; return the mask and log f.

        The canonical segmentation is a separate term and takes no slot.
        """
        done = ended & ~after.canonical
        if bool(done.any()):
            self._ended.append(after.of(done))
        (active,) = (~ended & ~after.canonical).nonzero(as_tuple=True)
        group = after.text[active]
        counts = group.bincount(minlength=len(self._widths))
        searched, log_f = torch.ones_like(ended), after.log_f
        if not bool((counts > self._widths).any()):
            return searched, log_f
        self._pruned |= counts > self._widths
        rank = after.log_p[active] + after.log_f[active]
        rank = rank + self._edges.log_rest[after.node[active]]
        first = counts.cumsum(0) - counts
        order = group.argsort(stable=True)
        column = torch.arange(len(active)) - first[group[order]]
        table = rank.new_full((len(counts), int(counts.max())), -torch.inf)
        table[group[order], column] = rank[order]
        uniform = self._uniforms(self._depth).flatten(0, 1)[:, 0].contiguous()
        width, nothing = self._widths.numpy(), torch.zeros(len(counts)).double().numpy()
        places = Places(width, width, nothing, nothing > 0)
        kept, log_kept = map(
            torch.from_numpy, thin_table(table.numpy(), places, uniform.numpy())
        )
        used = log_kept > -torch.inf
        pass_of, _ = used.nonzero(as_tuple=True)
        chosen = active[order[first[pass_of] + kept[used]]]
        searched = searched.index_fill(0, active, False).index_fill(0, chosen, True)
        log_f = log_f.index_add(0, chosen, log_kept[used])
        return searched, log_f

    def _finished(self) -> list[SegmentationWalk]:
        num_texts, copies = len(self.stretches), max(1, len(self.plan.passes))
        group, log_p = torch.zeros(0).long(), torch.zeros(0).double()
        if self._ended:
            group = torch.cat([spots.text for spots in self._ended])
            log_p = torch.cat([spots.log_p + spots.log_f for spots in self._ended])
        if self.plan.passes:
            log_w = segment_logsumexp(log_p, group, num_texts * copies)
            parts = log_w.view(num_texts, copies).unbind()
        elif self.plan.num_draws:
            log_w = self._log_w.masked_fill(self._same, -torch.inf)
            parts = log_w.view(num_texts, -1).unbind()
        else:
            order = group.argsort(stable=True)
            sizes = group.bincount(minlength=num_texts).tolist()
            parts = log_p[order].split(sizes)
        pruned = self._pruned.view(num_texts, copies).any(1).tolist()
        return [
            SegmentationWalk(stretch, cut, log_w.numpy())
            for stretch, cut, log_w in zip(self.stretches, pruned, parts, strict=True)
        ]


def _slots(row: Tensor) -> Tensor:
    """Slot of each of R rows: that of its parent row, if free.

    Args:
        row: Parent of each, non-decreasing, (R,).

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
    row, token = sent(torch.stack([row, token]), log_p.device)
    return fetched(log_p[row, token])[0].double()
