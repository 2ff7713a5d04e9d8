"""Segmentations of texts under search, extended by several tokens at a time.

Histories of a text, beginnings of segmentations, fall into groups: the passes of a
filter, single draws, or one beam. A step extends each by one token and prunes every
group to its width, ranking by log p so far and the look-ahead (``edges``). The first
token of a block is scored by the network, the others by what it gives them after
other beginnings. Then the network reads all blocks at once, and its scores take the
place of these. Equal blocks after equal beginnings are read once.

Pruning without bias may go by any ranks, so a filter's sums are unbiased whatever a
block was ranked by.

The loop differs from ``inference.steps``, whose histories of a text all take equally
many steps: a segmentation ends after its own number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers
from lm_latent_eval.devices import sent
from lm_latent_eval.inference.pruning import thin_table
from lm_latent_eval.inference.sorted_lists import Places
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.networks.causal import PADDING, Tokens
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.edges import (
    LatticeEdges,
    Stretch,
    expanded,
    expected_scores,
    look_ahead,
)

NONE = -1
"""Stand-in for an edge after the end of a segmentation."""


@dataclass(frozen=True)
class WalkPlan:
    """Groups of histories of a text, and how they are pruned."""

    widths: tuple[int, ...] | None
    """Largest number of histories of each group; None is one group that keeps all."""
    thins: bool = False
    """Whether to prune without bias, or to keep the best."""

    @property
    def num_groups(self) -> int:
        return 1 if self.widths is None else len(self.widths)


@dataclass(eq=False)
class SegmentationWalk:
    """Segmentations of a text that were found, except the canonical one."""

    stretch: Stretch
    pruned: bool
    """Whether any was dropped."""
    log_w: Floats
    """Log p of each segmentation, or the estimated sum of each group if they are pruned
    without bias, nats."""


class _Histories(NamedTuple):
    """Beginnings of segmentations of all texts, (S,) each."""

    group: Integers
    node: Integers
    """Index among the nodes of all texts."""
    row: Integers
    """Row of the reading at the beginning of the block."""
    log_p: Floats
    log_f: Floats
    """Log of the inverse survival probability, nats."""
    canonical: Booleans
    origin: Integers
    """Index among the histories at the beginning of the block."""
    block: Integers
    """Edges of the block, (S, n); ``NONE`` after an end."""

    def of(self, index: Integers | Booleans) -> _Histories:
        return _Histories._make(column[index] for column in self)


class SegmentationSearch:
    """Search for segmentations of several texts together."""

    def __init__(
        self,
        network: Network,
        stretches: Sequence[Stretch],
        plan: WalkPlan,
        keys: Sequence[int],
        block: int,
    ) -> None:
        """Read the given tokens.

        Args:
            network: The causal LM.
            stretches: The texts, with equally many given tokens, at least one.
            plan: Extent of the search.
            keys: Keys of each text's random numbers.
            block: Number of tokens of a block.
        """
        self.stretches, self.plan = stretches, plan
        reader, copies = network.reader(wide=False), plan.num_groups
        self._edges = LatticeEdges.of(stretches)
        self._scores = np.zeros(len(self._edges.nexts))
        if plan.widths is not None:
            self._scores = expected_scores(reader, stretches, self._edges)
        _, first, ends, _, nexts, *_ = self._edges
        self._ahead = look_ahead(first, ends, nexts, self._scores)
        self._uniforms = Streams(keys, copies)
        self._room = np.repeat([stretch.room for stretch in stretches], copies)
        self._widths = np.tile(plan.widths or (), len(stretches)).astype(np.int64)
        roots = {stretch.given: None for stretch in stretches}
        row_of = {given: row for row, given in enumerate(roots)}
        self._reading = reader.begin(sent(torch.tensor([*roots]), network.device))
        groups = np.arange(len(stretches) * copies)
        zeros = np.zeros(len(groups))
        self._active = _Histories(
            groups,
            np.repeat(self._edges.start, copies),
            np.repeat([row_of[stretch.given] for stretch in stretches], copies),
            zeros,
            zeros,
            zeros == 0,
            groups,
            np.empty((len(groups), 0), np.int64),
        )
        # All beginnings are read token by token: most go on in several ways.
        self._block = 1 if plan.widths is None else block
        self._depth = 0
        self._pruned = zeros > 0
        self._passed: list[_Histories] = []
        """Histories at the end of each block."""

    def run(self) -> list[SegmentationWalk]:
        """Extend all to their ends."""
        while len(self._active.node):
            self._extend_by_block()
        return self._finished()

    def paths(self) -> list[Tokens]:
        """Tokens of the segmentations found of one text, in the order of ``log_w``."""
        paths = []
        for last, histories in enumerate(self._passed):
            for row in np.flatnonzero(self._is_whole(histories)):
                edges = list[int]()
                for before in self._passed[last::-1]:
                    edges[:0] = before.block[row]
                    row = before.origin[row]
                written = np.array(edges)
                tokens = self._edges.token(written[written != NONE])
                paths.append(tuple(tokens.tolist()))
        return paths

    def _is_whole(self, histories: _Histories) -> Booleans:
        """Whether each history is a segmentation that the network can write."""
        possible = histories.log_p > -np.inf
        return possible & self._edges.ends[histories.node]

    def _extend_by_block(self) -> None:
        active, ended = self._active, list[_Histories]()
        for place in range(self._block):
            active = self._extended(active, first=place == 0)
            self._depth += 1
            done = self._edges.ends[active.node]
            ended.append(active.of(done & ~active.canonical))
            active = self._pruned_to_width(active.of(~done))
            if not len(active.node):
                break
        longest = place + 1
        ended = [one._replace(block=_filled(one.block, longest)) for one in ended]
        both = _Histories._make(map(np.concatenate, zip(active, *ended, strict=True)))
        both = self._read(both)
        self._passed.append(both)
        rest = both._replace(origin=np.arange(len(both.node)), block=both.block[:, :0])
        goes_on = (both.log_p > -np.inf) & ~self._edges.ends[both.node]
        self._active = rest.of(goes_on)

    def _extended(self, now: _Histories, *, first: bool) -> _Histories:
        """Extend histories by every edge that can follow."""
        edges = self._edges
        edge, of = expanded(edges.first[now.node], edges.first[now.node + 1])
        fits = edges.fewest[edge] + self._depth < self._room[now.group[of]]
        edge, of = edge[fits], of[fits]
        if first:
            given = edges.log_p(self._reading.log_p, now.row[of], edge)
            possible = given > -np.inf
            edge, of, given = edge[possible], of[possible], given[possible]
        else:
            given = self._scores[edge]
        after = now.of(of)
        return after._replace(
            node=edges.nexts[edge],
            log_p=after.log_p + given,
            canonical=after.canonical & edges.canonical[edge],
            block=np.concatenate([after.block, edge[:, None]], 1),
        )

    def _pruned_to_width(self, active: _Histories) -> _Histories:
        """Prune every group to its width.

        The canonical segmentation is a separate term, and always kept.
        """
        (other,) = np.nonzero(~active.canonical)
        group = active.group[other]
        counts = np.bincount(group, minlength=len(self._room))
        if self.plan.widths is None or (counts <= self._widths).all():
            return active
        self._pruned |= counts > self._widths
        rank = (active.log_p + active.log_f + self._ahead[active.node])[other]
        order = group.argsort(kind="stable")
        first = counts.cumsum() - counts
        column = np.arange(len(other)) - first[group[order]]
        table = np.full((len(counts), counts.max()), -np.inf)
        table[group[order], column] = rank[order]
        kept, log_kept = self._kept(table)
        of, _ = used = np.nonzero(log_kept > -np.inf)
        chosen = other[order[first[of] + kept[used]]]
        log_f = active.log_f.copy()
        log_f[chosen] += log_kept[used]
        index = np.sort(np.append(chosen, np.flatnonzero(active.canonical)))
        return active._replace(log_f=log_f).of(index)

    def _kept(self, table: Floats) -> tuple[Integers, Floats]:
        """Columns that each group keeps, and what their weights are multiplied by."""
        if self.plan.thins:
            uniform = self._uniforms(self._depth).flatten(0, 1)[:, 0].numpy()
            nothing = np.zeros(len(table))
            places = Places(self._widths, self._widths, nothing, nothing > 0)
            return thin_table(table, places, np.ascontiguousarray(uniform))
        order = (-table).argsort(1, kind="stable")[:, : self._widths.max()]
        rank = np.take_along_axis(table, order, 1)
        return order, np.where(rank > -np.inf, 0.0, -np.inf)

    def _read(self, histories: _Histories) -> _Histories:
        """Replace the expected scores of blocks by the network's; return their rows.

        The network reads all of a block that something follows, and all but the last
        token of one at whose end a text ends.
        """
        block, edges = histories.block, self._edges
        goes_on = ~edges.ends[histories.node]
        written = block != NONE
        size = written.sum(1)
        length = int((size - ~goes_on).max(initial=0))
        if not length:
            return histories
        asked = goes_on[:, None] | (np.arange(block.shape[1]) < size[:, None] - 1)
        tokens = np.where(asked & written, edges.token(block.clip(0)), PADDING)
        tokens = tokens[:, :length]
        key = np.concatenate([histories.row[:, None], tokens], 1)
        rows, which = np.unique(key, axis=0, return_inverse=True)
        which = which.reshape(-1)
        log_p = self._read_on(rows[:, 0], rows[:, 1:])
        (of, place) = np.nonzero(written[:, 1:])
        edge = block[of, place + 1]
        flat = log_p.flatten(0, 1)
        given = edges.log_p(flat, which[of] * length + place, edge)
        more = np.bincount(of, given - self._scores[edge], len(block))
        return histories._replace(log_p=histories.log_p + more, row=which)

    def _read_on(self, rows: Integers, tokens: Integers) -> Tensor:
        """Read tokens after rows, (R, n); return log p of what follows, (R, n, V)."""
        same = np.array_equal(rows, np.arange(len(self._reading.log_p)))
        device = self._reading.reader.device
        both = np.concatenate([rows[:, None], tokens], 1)
        index = sent(torch.from_numpy(both), device)
        return self._reading.read(index[:, 1:], None if same else index[:, 0])

    def _finished(self) -> list[SegmentationWalk]:
        copies = self.plan.num_groups
        whole = [one.of(self._is_whole(one)) for one in self._passed]
        group = np.concatenate([np.zeros(0, np.int64), *(one.group for one in whole)])
        log_p = np.concatenate([[], *(one.log_p + one.log_f for one in whole)])
        if self.plan.thins:
            sums = np.full(len(self._room), -np.inf)
            np.logaddexp.at(sums, group, log_p)
            parts = [*sums.reshape(-1, copies)]
        else:
            parts = [log_p[group == text] for text in range(len(self.stretches))]
        pruned = self._pruned.reshape(-1, copies).max(1)
        return [
            SegmentationWalk(stretch, bool(cut), log_w)
            for stretch, cut, log_w in zip(self.stretches, pruned, parts, strict=True)
        ]


def _filled(block: Integers, length: int) -> Integers:
    """Fill blocks up to a length with ``NONE``."""
    return np.pad(block, ((0, 0), (0, length - block.shape[1])), constant_values=NONE)
