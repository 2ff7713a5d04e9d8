"""Choices that KGLM's walks may take at a token: listed for a search, or for a cut.

Of the thousands of entities that a walk may mention, those that may be among the best
are listed one by one; a cut that leaves sums unbiased gets the others as two choices a
walk, one for all NEW entities that are not listed and one for all DERIVED ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.cuts import GRID, Cut, ranks
from lm_latent_eval.inference.particles import odd_numbers
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    least_of_best,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.inference.ragged import invert_cdf as invert_ragged_cdf
from lm_latent_eval.inference.step_choices import Ragged
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Mention, NextStep, Parents, Rows
from lm_latent_eval.models.kglm.parent_gains import Gains, ParentGains
from lm_latent_eval.models.kglm.scores import ParentEdges

REST = -1
"""The node of a choice that stands for others. Less by n, it stands for every NEW
entity but the n first, or for the unlisted DERIVED nodes of the n-th past."""

LEAST_REST = 1e-16
"""The probability that unlisted entities are ranked by is no less: a sum to one does
not tell how much less. What is drawn of them is weighed by what it is."""


class Ordered(NamedTuple):
    """NEW entities of a token in the order of what they are worth, on the host."""

    log_prob: Tensor
    """log p_new, nats, (B, n)."""
    entity: Tensor
    """(B, n)."""
    worth: Tensor
    """log p_new and what they are worth as parents to come, nats, (B, n)."""


class Unlisted(NamedTuple):
    """Nodes that one choice stands for, flat, on the host."""

    past: Tensor
    """Non-decreasing, (n,)."""
    node: Tensor
    """(n,)."""
    log_prob: Tensor
    """Given the past and that something is derived, nats, (n,)."""
    log_sum: Tensor
    """Of every past, nats; ``-inf`` where all is listed."""

    @classmethod
    def of(
        cls, past: Tensor, node: Tensor, log_prob: Tensor, num_pasts: int
    ) -> Unlisted:
        return cls(past, node, log_prob, segment_logsumexp(log_prob, past, num_pasts))

    def draw(self, past: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Draw nodes of some pasts, (R,): nodes, and log q among them, nats."""
        share = self.log_prob - self.log_sum[self.past]
        drawn = invert_ragged_cdf(share.exp(), self.past, len(self.log_sum), past, u)
        return self.node[drawn], widened(share[drawn])


@dataclass(frozen=True)
class WalkChoices(Ragged):
    """Choices of walks: mention type and node."""

    derived: Unlisted = field(kw_only=True)
    """What choices of ``REST`` stand for that are DERIVED."""
    outlook: Tensor = field(kw_only=True)
    """By which its history is ranked, (N,)."""


class Listing(NamedTuple):
    """Choices of some rows that share a mention type, flat, on the host."""

    mention: Mention
    row: Tensor
    node: Tensor
    log_prob: Tensor
    """Of the node, given the type, nats."""
    gain: Tensor
    """What its mention is worth for the text to come, nats."""


class ListedSteps(NamedTuple):
    """Choices of several rows, flat, on the host."""

    row: Tensor
    mention: Tensor
    node: Tensor
    log_p: Tensor
    """What they add to the rank of a walk, nats."""
    ahead: Tensor
    """What the entities of the walk are then worth as parents to come, nats."""
    derived: Unlisted
    key: Tensor
    """Equal where walks of a text go on alike."""


@dataclass(frozen=True)
class Competing:
    """R walks that choose at one position each, and compete in groups."""

    past: Tensor
    """Which of D distinct pasts each has, (R,)."""
    outlook: Tensor
    """By which each is ranked, (R,)."""
    group: Tensor
    """Non-decreasing, (R,)."""
    rank: Tensor
    """Of a walk that takes each mention type, nats, (R, 4)."""
    enough: Tensor
    """What may be among the best ranks no less, nats, (R,)."""
    width: Tensor
    """The most that go on of the group of each, (R,)."""
    exhaustive: bool
    """Whether what cannot be among the best is wanted."""

    def surely(self, mention: Mention, node: Tensor, gain: Tensor) -> Listing:
        """Let every walk take a type, whose node is certain."""
        every = torch.arange(len(node))
        return Listing(mention, every, node, torch.zeros_like(gain), gain)

    def able(self, mention: Mention, most: Tensor) -> Tensor:
        """Return the walks that may take a type, if no node adds more than ``most``."""
        rank = self.rank[:, mention]
        possible = rank > -torch.inf
        if not self.exhaustive:
            possible &= rank + most >= self.enough
        return possible.nonzero()[:, 0]


def listed_steps(
    walk: NextStep,
    rows: Rows,
    outlook: Tensor,
    group: Tensor,
    score: Tensor,
    cut: Cut,
    new: Ordered,
    worth: tuple[ParentGains, int] | None,
    paid: Tensor | None,
) -> ListedSteps:
    r"""List the choices that may be among the best of a group of walks.

    Walks are ranked by log q, or, if it is known what is ``expected`` of the rest
    of the text, by log p of walk and words so far plus that: by all that went into
    the twist, less what was expected and has been paid. Up to a number that the
    walks of a text share,

    .. math:: \log p(z_{\le t}, x_{\le t}) + \log \beta_{t+1}(z_{\le t}) =
        \sum_{i \le t} \log q(z_i) + \log Z_i - \log \beta_i(z_{<i})

    Listed is what ranks no lower than the last of the W best of those that are
    known at once (of every walk NONE, CONTINUE and the best NEW entity) and has a share
    of ``least`` of their total. An ``exhaustive`` cut gets everything else as choices
    of ``REST``.

    Args:
        walk: The distribution of the next steps.
        rows: R decisions.
        outlook: By which each is ranked, (R,).
        group: Which of them compete, at one position each, non-decreasing, (R,).
        score: What the walks so far are ranked by, nats, (R,) float64.
        cut: What chooses among them.
        new: NEW entities at the position of every outlook.
        worth: What entities are worth as parents, and at which token this is.
        paid: What was expected of the text from here on, if not by ``walk``, (R,) nats.
    """
    past, which = rows.distinct()
    if paid is not None:
        paid = paid.new_zeros(len(past.position)).scatter(0, which, paid)
    types, parents = _types(walk, past, paid)
    of_past = torch.zeros_like(past.position).scatter(0, which, outlook)
    gains = Gains.nothing(len(of_past))
    if worth is not None:
        gains = worth[0].after(worth[1], of_past, past.window)
    every = torch.arange(len(of_past))
    best = walk.graph.node_of_entity[new.entity[of_past, 0]]
    best_new = new.log_prob[of_past, 0] + gains.mentioned(every, best)

    rank = (score + gains.total[which])[:, None] + types[which]
    known = rank[:, [Mention.NONE, Mention.CONTINUE, Mention.NEW]].clone()
    known[:, -1] += best_new[which]
    widths = torch.tensor(cut.widths)
    enough = least_of_best(group, known, widths)
    if cut.least is not None:
        total = segment_logsumexp(known.logsumexp(1), group, len(enough))
        enough = torch.maximum(enough, total + cut.least[: len(enough)].log())
    enough = enough[group] - GRID  # for rounding
    width = widths[group % cut.groups]
    walks = Competing(which, outlook, group, rank, enough, width, cut.exhaustive)

    going_on = gains.mentioned(every, past.previous)[which]
    introduced, unlisted_new = _new(walks, walk, new, gains)
    derived, unlisted = _derived(walks, parents, walk.graph.num_nodes, gains)
    listings = [
        walks.surely(Mention.NONE, torch.zeros_like(which), torch.zeros_like(going_on)),
        walks.surely(Mention.CONTINUE, rows.previous, going_on),
        introduced,
        derived,
    ]
    if cut.exhaustive:
        listings += [unlisted_new, _rest_of(walks, unlisted)]
    columns = list(zip(*listings, strict=True))[1:]
    row, node, log_prob, gain = (torch.cat(column) for column in columns)
    mention = torch.cat([torch.full_like(x.row, x.mention) for x in listings])
    log_p, ahead = types[which[row], mention] + log_prob, gains.total[which[row]] + gain
    possible = score[row] + log_p + ahead > -torch.inf
    if not cut.exhaustive:
        possible &= score[row] + log_p + ahead >= enough[row]
    possible &= (node != NO_ENTITY) | (mention == Mention.NONE)
    (keep,) = possible.nonzero(as_tuple=True)
    # In an order that no score decides, for those that tie.
    choice = row[keep] * len(Mention) + mention[keep]
    keep = keep[(choice * walk.graph.num_nodes + node[keep].clamp_min(0)).argsort()]
    row, mention, node, log_p, ahead = (
        x[keep] for x in (row, mention, node, log_p, ahead)
    )
    key = keys_after(past.window, which[row], node)
    return ListedSteps(row, mention, node, log_p, ahead, unlisted, key)


def keys_after(window: Tensor, past: Tensor, node: Tensor) -> Tensor:
    """Return keys of what follows mentions, which tell walks apart that go on apart.

    What follows depends on the node mentioned last, if that was just now, and on which
    others were mentioned in the window, each where it was mentioned last. A key is the
    sum of all that, times an odd random number of its place, modulo 2^64.

    Args:
        window: Of D pasts, (D, W).
        past: Of each mention, (n,).
        node: Mentioned by it, 0 if nothing is; negative, if one of many, (n,).
    """
    *odd, now, previous = odd_numbers(window.shape[1] + 1)
    ordered, order = window.sort(dim=1, stable=True)
    again = F.pad(ordered.diff(dim=1) == 0, (0, 1))
    last = torch.zeros_like(again).scatter(1, order, ~again)
    # The first place of a window is behind the next one.
    place = torch.stack([torch.zeros_like(now), *odd])
    code = window * last * place
    key = torch.where(node < 0, ~torch.arange(len(node)), code.sum(1)[past])
    (some,) = (node > 0).nonzero(as_tuple=True)
    past, node = past[some], node[some]
    mentioned_again = (code[past] * (window[past] == node[:, None])).sum(1)
    key[some] += node * (now + previous) - mentioned_again
    return key


class ScoredParents(NamedTuple):
    """Parents of D pasts and their edges, on the host."""

    parents: Parents
    edges: ParentEdges
    """At the positions of the pasts."""
    place: Tensor
    """The position of each past among those of the edges, (D,)."""


def _types(
    walk: NextStep, past: Rows, paid: Tensor | None
) -> tuple[Tensor, ScoredParents]:
    """Return what mention types add to the rank of D pasts, (D, 4), and parents."""
    parents = walk.parents(past)
    position, place = past.position.unique(return_inverse=True)
    twisted = walk.log_twisted(past, parents)
    if paid is None:
        paid = walk.expected_after(past.position, past.window)
    edges, (twisted, paid, log_parent) = walk.edges.select(position).fetched_with(
        twisted, paid, parents.log_prob
    )
    types = twisted.log_softmax(-1)
    if walk.expected is not None:
        types = types + (twisted.logsumexp(-1) - paid)[:, None]
    types[past.previous == NO_ENTITY, Mention.CONTINUE] = -torch.inf
    return types, ScoredParents(parents._replace(log_prob=log_parent), edges, place)


def _new(
    walks: Competing, walk: NextStep, new: Ordered, gains: Gains
) -> tuple[Listing, Listing]:
    """List NEW entities of walks, and the others of each walk as one.

    Every walk has the same ones to choose from, so of the one that ranks i-th (from 1)
    only the first W / i can be among the W best, but where a walk has mentioned them
    already.
    """
    able = walks.able(Mention.NEW, new.worth[walks.outlook, 0])
    base = walks.rank[:, Mention.NEW]
    order, rank = ranked_within(walks.group[able], ranks(base[able]))
    most = (walks.width[able][order] // (rank + 1)).clamp_max(new.entity.shape[1])
    place, ranked = expand_ranges(torch.zeros_like(most), most)
    row = able[order[ranked]]
    good = base[row] + new.worth[walks.outlook[row], place] >= walks.enough[row]
    number = torch.bincount(row[good], minlength=len(base))
    (keep,) = (place < number[row]).nonzero(as_tuple=True)
    row, place = row[keep], place[keep]
    here = walks.outlook[row], place
    node = walk.graph.node_of_entity[new.entity[here]]
    gain = gains.mentioned(walks.past[row], node)
    listed = Listing(Mention.NEW, row, node, new.log_prob[here], gain)
    rest = able[number[able] < int(walk.introducible.sum())]
    log_rest = _log_rest(new.log_prob)[walks.outlook[rest], number[rest]]
    nothing = torch.zeros_like(log_rest)
    return listed, Listing(Mention.NEW, rest, REST - number[rest], log_rest, nothing)


def _derived(
    walks: Competing, of_pasts: ScoredParents, num_nodes: int, gains: Gains
) -> tuple[Listing, Unlisted]:
    """List DERIVED nodes of walks: of each past those that any of its walks lists."""
    parents, edges, place = of_pasts
    able = walks.able(Mention.DERIVED, gains.most[walks.past])
    past, base = walks.past[able], walks.rank[able, Mention.DERIVED]
    some = torch.zeros_like(place, dtype=torch.bool).index_fill(0, past, True)
    of, node, log_prob = derived_nodes(parents, edges, place, some, num_nodes)
    least = base.new_full(place.shape, torch.inf).scatter_reduce(
        0, past, walks.enough[able] - base, "amin"
    )
    (few,) = (log_prob + gains.most[of] >= least[of]).nonzero(as_tuple=True)
    gain = gains.total.new_full(node.shape, -torch.inf)
    gain[few] = gains.mentioned(of[few], node[few])
    good = log_prob + gain >= least[of]
    unlisted = Unlisted.of(of[~good], node[~good], log_prob[~good], len(place))
    of, node, log_prob, gain = (x[good] for x in (of, node, log_prob, gain))
    count = torch.bincount(of, minlength=len(place))
    end = count.cumsum(0)
    listed, row = expand_ranges((end - count)[past], end[past])
    return (
        Listing(
            Mention.DERIVED, able[row], node[listed], log_prob[listed], gain[listed]
        ),
        unlisted,
    )


def _rest_of(walks: Competing, unlisted: Unlisted) -> Listing:
    """Return one choice for the unlisted DERIVED nodes of every walk that has any."""
    log_sum = unlisted.log_sum[walks.past]
    possible = (log_sum > -torch.inf) & (walks.rank[:, Mention.DERIVED] > -torch.inf)
    (row,) = possible.nonzero(as_tuple=True)
    nothing = torch.zeros_like(log_sum[row])
    return Listing(Mention.DERIVED, row, REST - walks.past[row], log_sum[row], nothing)


def _log_rest(log_best: Tensor) -> Tensor:
    """Return log p of all but the first i entities, (B, n) -> (B, n + 1) nats."""
    mass = F.pad(log_best.exp().cumsum(-1), (1, 0))
    return (1 - mass).clamp_min(LEAST_REST).log()


def drawn_of_the_rest(
    walk: NextStep,
    position: Tensor,
    listed: Tensor,
    new: Ordered,
    u: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw NEW entities that are not among the first.

    Args:
        walk: The distribution of the next step.
        position: Of R decisions, (R,).
        listed: How many of the first are left out, (R,).
        new: In order, R rows.
        u: Numbers of (0, 1), on the host, (R,).

    Returns:
        Nodes, and the log of their probability among those, nats, (R,) each, on the
        host.
    """
    node, log_q = torch.zeros_like(position), widened(torch.zeros(len(position)))
    there, which = position.unique(return_inverse=True)
    (log_p,) = fetched(walk.new.log_probs(there))
    for few in walk.scores.new.few(torch.arange(len(position))):
        left_out = torch.arange(new.entity.shape[1]) < listed[few, None]
        left = log_p[which[few]].double().exp()
        left = left.scatter_reduce(1, new.entity[few], (~left_out).double(), "prod")
        drawn = invert_cdf(left, u[few])
        mass = left.gather(1, drawn[:, None])[:, 0] / left.sum(-1)
        node[few], log_q[few] = walk.graph.node_of_entity[drawn], mass.log()
    return node, log_q


def derived_nodes(
    parents: Parents, edges: ParentEdges, place: Tensor, some: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct nodes that some of R decisions may derive.

    Args:
        parents: Of the decisions.
        edges: Of the parents, scored where those are.
        place: The position of each decision among those of the edges, (R,).
        some: Which decisions, (R,) bool.
        num_nodes: Of the graph.

    Returns:
        Rows and nodes on the host, and the log-probability of each node given that it
        is derived, nats, edges and parents summed.
    """
    (parent,) = some[parents.row].nonzero(as_tuple=True)
    row = parents.row[parent]
    tail, log_edge, which = edges.every(place[row], parents.entity[parent])
    row, node, pair = distinct_pairs(row[which], tail, num_nodes)
    log_parent = parents.log_prob[sent(parent[which], parents.log_prob.device)]
    return row, node, segment_logsumexp(log_parent + log_edge, pair, len(row))
