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
from lm_latent_eval.inference.cuts import GRID, LEAST, Cut, Thinned, ranks
from lm_latent_eval.inference.particles import odd_numbers
from lm_latent_eval.inference.ragged import (
    distinct,
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


class ScoredParents(NamedTuple):
    """Parents of D pasts and their edges, on the host."""

    parents: Parents
    edges: ParentEdges
    """At the positions of the pasts."""
    place: Tensor
    """The position of each past among those of the edges, (D,)."""

    def derived(self, some: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Find the nodes that some pasts may derive, (n,), see ``derived_nodes``."""
        these = torch.zeros_like(self.place, dtype=torch.bool).index_fill(0, some, True)
        return derived_nodes(self.parents, self.edges, self.place, these, num_nodes)


class Unlisted(NamedTuple):
    """DERIVED nodes that one choice of each past stands for, on the host."""

    of_pasts: ScoredParents
    num_nodes: int
    """N."""
    listed: Tensor
    """past * N + node of those that are listed by themselves, increasing, (n,)."""
    log_sum: Tensor
    """Log of the probability of all others, given the past and that something is
    derived, nats, (D,); ``-inf`` where there are none."""

    def draw(self, past: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Draw nodes of some pasts, (R,): nodes, and log q among them, nats."""
        some, which = distinct(past)
        owner, node, log_prob = self.of_pasts.derived(some, self.num_nodes)
        key = owner * self.num_nodes + node
        (left,) = (~_among(key, self.listed)).nonzero(as_tuple=True)
        row, node = torch.searchsorted(some, owner[left]), node[left]
        share = log_prob[left] - self.log_sum[owner[left]]
        drawn = invert_ragged_cdf(share.exp(), row, len(some), which, u)
        return node[drawn], widened(share[drawn])


def _among(number: Tensor, ordered: Tensor) -> Tensor:
    """Tell which numbers are among others, which are increasing, (n,) bool."""
    if not len(ordered):
        return torch.zeros_like(number, dtype=torch.bool)
    place = torch.searchsorted(ordered, number).clamp_max(len(ordered) - 1)
    return ordered[place] == number


@dataclass(frozen=True)
class WalkChoices(Ragged):
    """Choices of walks: mention type and node."""

    derived: Unlisted = field(kw_only=True)
    """What choices of ``REST`` stand for that are DERIVED."""
    pasts: Rows = field(kw_only=True)
    """That histories have."""
    past: Tensor = field(kw_only=True)
    """Which of them its history has, (N,)."""


class Listing(NamedTuple):
    """Choices of some pasts that share a mention type, flat, on the host."""

    mention: Mention
    past: Tensor
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
class Pasts:
    """D pasts, of one walk or several, which choose at one position each."""

    outlook: Tensor
    """By which each is ranked, (D,)."""
    rank: Tensor
    """What a walk gains or loses by taking each mention type, nats, (D, 4)."""
    least: Tensor
    """What it loses at most if it is to be among the best, nats, (D,)."""
    most_new: Tensor
    """How many NEW entities may be among the best, (D,)."""

    def surely(self, mention: Mention, node: Tensor, gain: Tensor) -> Listing:
        """Let every past take a type, whose node is certain."""
        every = torch.arange(len(node))
        return Listing(mention, every, node, torch.zeros_like(gain), gain)


class Unfinished(NamedTuple):
    """R walks of several groups at one token, and the D pasts that they have."""

    past: Rows
    """D."""
    outlook: Tensor
    """By which each past is ranked, (D,)."""
    which: Tensor
    """The past of each walk, (R,)."""
    group: Tensor
    """Which of the walks compete, non-decreasing, (R,)."""
    score: Tensor
    """What the walks so far are ranked by, nats, (R,) float64."""
    paid: Tensor | None
    """What was expected of the text from here on, if not by the distribution of the
    next steps, nats, (R,)."""


def listed_steps(
    walk: NextStep,
    walks: Unfinished,
    cut: Cut,
    new: Ordered,
    worth: tuple[ParentGains, int] | None,
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
        walks: What they are the steps of.
        cut: What chooses among them.
        new: NEW entities at the position of every outlook.
        worth: What entities are worth as parents, and at which token this is.
    """
    past, outlook, which, group, score, paid = walks
    if paid is not None:
        paid = paid.new_zeros(len(past.position)).scatter(0, which, paid)
    types, parents = _types(walk, past, paid)
    gains = Gains.nothing(len(outlook))
    if worth is not None:
        gains = worth[0].after(worth[1], outlook, past.window, past.last)
    every = torch.arange(len(outlook))
    best = walk.graph.node_of_entity[new.entity[outlook, 0]]
    rank = gains.total[:, None] + types

    known = rank[:, [Mention.NONE, Mention.CONTINUE, Mention.NEW]]
    known[:, -1] += new.log_prob[outlook, 0] + gains.mentioned(every, best)
    number = (known > -torch.inf).long()
    number[:, -1] *= (new.log_prob > -torch.inf).sum(1)[outlook]
    enough = _enough(score[:, None] + known[which], number.sum(1)[which], group, cut)
    # A past lists what any of its walks may need.
    least = score.new_full((len(outlook),), torch.inf)
    least = least.scatter_reduce(0, which, enough - score, "amin")
    most_new = _most_new(which, group, score + rank[which, Mention.NEW], cut)
    pasts = Pasts(outlook, rank, least, most_new)

    introduced, unlisted_new = _new(pasts, walk, new, gains)
    derived, unlisted = _derived(pasts, parents, walk.graph.num_nodes, gains)
    going_on = gains.mentioned(every, past.previous)
    nothing = torch.zeros_like(going_on)
    listings = [
        pasts.surely(Mention.NONE, torch.zeros_like(every), nothing),
        pasts.surely(Mention.CONTINUE, past.previous, going_on),
        introduced,
        derived,
    ]
    if cut.exhaustive:
        listings += [unlisted_new, _rest_of(pasts, unlisted)]
    columns = list(zip(*listings, strict=True))[1:]
    owner, node, log_prob, gain = (torch.cat(column) for column in columns)
    mention = torch.cat([torch.full_like(x.past, x.mention) for x in listings])
    log_p, ahead = types[owner, mention] + log_prob, gains.total[owner] + gain
    possible = (node != NO_ENTITY) | (mention == Mention.NONE)
    possible &= log_p + ahead > -torch.inf
    if not cut.exhaustive:
        possible &= log_p + ahead >= least[owner]
    (keep,) = possible.nonzero(as_tuple=True)
    # In an order that no score decides, for those that tie.
    order = owner[keep] * len(Mention) + mention[keep]
    keep = keep[(order * walk.graph.num_nodes + node[keep].clamp_min(0)).argsort()]
    owner, mention, node, log_p, ahead = (
        x[keep] for x in (owner, mention, node, log_p, ahead)
    )
    key = keys_after(past, owner, mention, node)

    # From here on by walk.
    end = torch.bincount(owner, minlength=len(outlook)).cumsum(0)
    choice, row = expand_ranges(F.pad(end, (1, 0))[which], end[which])
    if not cut.exhaustive:
        total = score[row] + (log_p + ahead)[choice]
        (good,) = (total >= enough[row]).nonzero(as_tuple=True)
        choice, row = choice[good], row[good]
    mention, node, log_p, ahead, key = (
        x[choice] for x in (mention, node, log_p, ahead, key)
    )
    return ListedSteps(row, mention, node, log_p, ahead, unlisted, key)


def _enough(known: Tensor, number: Tensor, group: Tensor, cut: Cut) -> Tensor:
    """Return what is ranked no lower by all that may be among the best, (R,) nats.

    Args:
        known: Ranks of some choices of each walk, nats, (R, C).
        number: How many it has, or more, (R,).
        group: In which it competes, (R,).
        cut: What chooses.
    """
    enough = least_of_best(group, known, torch.tensor(cut.widths))
    if isinstance(cut, Thinned):
        there = (known > -torch.inf).sum(1)
        nobody = torch.zeros_like(enough, dtype=torch.long)
        least = cut.least(*(nobody.index_add(0, group, x) for x in (number, there)))
        total = segment_logsumexp(known.logsumexp(1), group, len(enough))
        enough = torch.maximum(enough, total + least.log())
    return enough[group] - GRID  # for rounding


def _most_new(which: Tensor, group: Tensor, base: Tensor, cut: Cut) -> Tensor:
    """Return how many NEW entities of each past may be among the W best, (D,).

    Every walk has the same ones to choose from, so of the one that ranks i-th (from 1)
    only the first W / i can, but where a walk has mentioned them already.

    ``base`` is the rank of a walk that mentions any of them.
    """
    order, place = ranked_within(group, ranks(base))
    most = torch.tensor(cut.widths)[group[order] % cut.groups] // (place + 1)
    number = int(which.max()) + 1 if len(which) else 0
    return most.new_zeros(number).scatter_reduce(0, which[order], most, "amax")


def keys_after(pasts: Rows, past: Tensor, mention: Tensor, node: Tensor) -> Tensor:
    """Return keys of what follows mentions, which tell walks apart that go on apart.

    What follows depends on the node mentioned last, if that was just now, and on which
    others were mentioned in the window, each where it was mentioned last. A key is the
    sum of all that, times an odd random number of its place, modulo 2^64. Choices that
    stand for others go on alike if they are of one type and follow equal windows.

    Args:
        pasts: D of them.
        past: Of each mention, (n,).
        mention: Its type, (n,).
        node: Mentioned by it, 0 if nothing is; negative, if one of many, (n,).
    """
    window = pasts.window
    *odd, now, previous = odd_numbers(window.shape[1] + 1)
    # The first place of a window is behind the next one.
    place = torch.stack([torch.zeros_like(now), *odd])
    code = window * pasts.last * place
    behind = (window * torch.stack([now, *odd])).sum(1)
    one_of_many = behind[past] * previous + mention
    key = torch.where(node < 0, one_of_many, code.sum(1)[past])
    (some,) = (node > 0).nonzero(as_tuple=True)
    past, node = past[some], node[some]
    mentioned_again = (code[past] * (window[past] == node[:, None])).sum(1)
    key[some] += node * (now + previous) - mentioned_again
    return key


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
    pasts: Pasts, walk: NextStep, new: Ordered, gains: Gains
) -> tuple[Listing, Listing]:
    """List NEW entities of pasts, and the others of each past as one."""
    (able,) = (pasts.rank[:, Mention.NEW] > -torch.inf).nonzero(as_tuple=True)
    outlook, most = pasts.outlook[able], pasts.most_new[able]
    least = pasts.least[able] - pasts.rank[able, Mention.NEW]
    number = _worth_at_least(new.worth, outlook, least).minimum(most)
    place, which = expand_ranges(torch.zeros_like(number), number)
    past, here = able[which], (outlook[which], place)
    node = walk.graph.node_of_entity[new.entity[here]]
    gain = gains.mentioned(past, node)
    listed = Listing(Mention.NEW, past, node, new.log_prob[here], gain)
    (rest,) = (number < int(walk.introducible.sum())).nonzero(as_tuple=True)
    log_rest = _log_rest(new.log_prob)[outlook[rest], number[rest]]
    nothing, stands_for = torch.zeros_like(log_rest), REST - number[rest]
    return listed, Listing(Mention.NEW, able[rest], stands_for, log_rest, nothing)


def _worth_at_least(worth: Tensor, row: Tensor, least: Tensor) -> Tensor:
    """Count the numbers of D rows, (B, n), that are large enough, (D,).

    Each row is from the largest down but for rounding.
    """
    size = 2 * int(-LEAST)
    there = ranks(worth).clamp(LEAST, -LEAST).long()
    row_of = torch.arange(len(worth))[:, None]
    ordered = (row_of * size - there).flatten()
    wanted = row * size - ranks(least).clamp(LEAST, -LEAST).long()
    found = torch.searchsorted(ordered, wanted, right=True)
    return (found - row * worth.shape[1]).clamp(0, worth.shape[1])


def _derived(
    pasts: Pasts, of_pasts: ScoredParents, num_nodes: int, gains: Gains
) -> tuple[Listing, Unlisted]:
    """List DERIVED nodes of pasts, and the others."""
    rank = pasts.rank[:, Mention.DERIVED]
    may_list = (rank > -torch.inf) & (rank + gains.most >= pasts.least)
    (some,) = may_list.nonzero(as_tuple=True)
    past, node, log_prob = of_pasts.derived(some, num_nodes)
    least = (pasts.least - rank)[past]
    (few,) = (log_prob + gains.most[past] >= least).nonzero(as_tuple=True)
    gain = gains.total.new_full(node.shape, -torch.inf)
    gain[few] = gains.mentioned(past[few], node[few])
    good = log_prob + gain >= least
    # Of pasts that list none, the probability of all is one.
    log_sum = segment_logsumexp(log_prob[~good], past[~good], len(pasts.least))
    log_sum = torch.zeros_like(log_sum).index_copy(0, some, log_sum[some])
    past, node, log_prob, gain = (x[good] for x in (past, node, log_prob, gain))
    unlisted = Unlisted(of_pasts, num_nodes, past * num_nodes + node, log_sum)
    return Listing(Mention.DERIVED, past, node, log_prob, gain), unlisted


def _rest_of(pasts: Pasts, unlisted: Unlisted) -> Listing:
    """Return one choice for the unlisted DERIVED nodes of every past that has any."""
    possible = pasts.rank[:, Mention.DERIVED] > -torch.inf
    (past,) = (possible & (unlisted.log_sum > -torch.inf)).nonzero(as_tuple=True)
    log_sum = unlisted.log_sum[past]
    nothing = torch.zeros_like(log_sum)
    return Listing(Mention.DERIVED, past, REST - past, log_sum, nothing)


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
    """Draw NEW entities of R decisions that are not among the first ``listed``.

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
