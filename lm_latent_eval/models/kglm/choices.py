"""Choices of a walk's next step: ranked for search, summed for prediction."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.cuts import GRID, Cut, ranks
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    least_of_best,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.models.kglm.edges import ParentEdges
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.steps import ListedSteps, Mention, Parents, Rows
from lm_latent_eval.models.kglm.walk import NextStep


def listed_steps(
    walk: NextStep,
    rows: Rows,
    text: Tensor,
    group: Tensor,
    score: Tensor,
    cut: Cut,
    best: tuple[Tensor, Tensor],
) -> ListedSteps:
    r"""List the choices that may be among the best of a group of walks.

    Walks are ranked by log q, or, if it is known what is ``expected`` of the rest
    of the text, by log p of walk and words so far plus that: by all that went into
    the twist, less what was expected and has been paid. Up to a number that the
    walks of a text share,

    .. math:: \log p(z_{\le t}, x_{\le t}) + \log \beta_{t+1}(z_{\le t}) =
        \sum_{i \le t} \log q(z_i) + \log Z_i - \log \beta_i(z_{<i})

    Unless the cut is ``exhaustive``, what cannot be among the ``width`` best is not
    listed: a choice below as many that are known at once, without any DERIVED, or a NEW
    one too many. Every walk has the same NEW entities to choose from, so of the one
    that ranks i-th (from 1) only the first ``width`` / i can be among the ``width``
    best. An exhaustive cut gets the others of a walk as one choice, ``REST``.

    Args:
        walk: The distribution of the next steps.
        rows: R decisions.
        text: Whose they are, non-decreasing, (R,).
        group: Which of them compete, at one position each, non-decreasing, (R,).
        score: What the walks so far are ranked by, nats, (R,) float64.
        cut: What chooses among them.
        best: The most probable NEW entities at the position of every text: log p_new
            and entity, on the host, (B, n) each.
    """
    past, which = rows.distinct()
    parents = walk.parents(past)
    position, where = past.position.unique(return_inverse=True)
    twisted = walk.log_twisted(past, parents)
    paid = walk.expected_after(past.position, past.window)
    edges, (twisted, paid, log_parent) = walk.edges.select(position).fetched_with(
        twisted, paid, parents.log_prob
    )
    types = twisted.log_softmax(-1)
    if walk.expected is not None:
        types = types + (twisted.logsumexp(-1) - paid)[:, None]
    types[past.previous == NO_ENTITY, Mention.CONTINUE] = -torch.inf
    types = types[which]
    none, new, derived, going_on = (score[:, None] + types).unbind(-1)
    log_best, entity = best
    best_new = new + log_best[text, 0]
    enough = torch.full_like(score, -torch.inf)
    if not cut.exhaustive:
        known = torch.stack([none, best_new, going_on], -1)
        enough = least_of_best(group, known, cut.width)[group] - GRID  # for rounding

    (able,) = ((best_new >= enough) & (best_new > -torch.inf)).nonzero(as_tuple=True)
    order, rank = ranked_within(group[able], ranks(new[able]))
    most = (cut.width // (rank + 1)).clamp_max(entity.shape[1])
    place, ranked = expand_ranges(torch.zeros_like(most), most)
    new_row = able[order[ranked]]
    here = text[new_row], place
    new_node, log_new = walk.graph.node_of_entity[entity[here]], log_best[here]
    (wanted,) = (derived >= enough).nonzero(as_tuple=True)
    derived_row, derived_node, log_derived = _derived_of(
        parents._replace(log_prob=log_parent),
        edges,
        where,
        which[wanted],
        walk.graph.num_nodes,
    )
    every = torch.arange(len(score))
    sure = log_new.new_zeros(len(every))
    parts = [
        (Mention.NONE, every, torch.zeros_like(every), sure),
        (Mention.NEW, new_row, new_node, log_new),
        (Mention.DERIVED, wanted[derived_row], derived_node, log_derived),
        (Mention.CONTINUE, every, rows.previous, sure),
    ]
    if cut.exhaustive:
        some = most < int(walk.introducible.sum())
        rest_row, listed = able[order[some]], most[some]
        log_rest = _log_rest(log_best[text[rest_row]], listed)
        parts.append((Mention.NEW, rest_row, REST - listed, log_rest))
    row = torch.cat([part[1] for part in parts])
    mention = torch.cat([torch.full_like(r, m) for m, r, _, _ in parts])
    node = torch.cat([part[2] for part in parts])
    log_p = types[row, mention] + torch.cat([part[3] for part in parts])
    total = score[row] + log_p
    possible = (total > -torch.inf) & (total >= enough[row])
    possible &= (node != NO_ENTITY) | (mention == Mention.NONE)
    (keep,) = possible.nonzero(as_tuple=True)
    # In an order that no score decides, for those that tie.
    choice = row[keep] * len(Mention) + mention[keep]
    keep = keep[(choice * walk.graph.num_nodes + node[keep].clamp_min(0)).argsort()]
    return ListedSteps(row[keep], mention[keep], node[keep], log_p[keep])


REST = -1
"""Less than this by n stands for every NEW entity but the n most probable ones."""
LEAST_REST = 1e-16
"""The probability that unlisted entities are ranked by is no less: a sum to one does
not tell how much less. What is drawn of them is weighed by what it is."""


def _log_rest(log_best: Tensor, listed: Tensor) -> Tensor:
    """Return log p of all entities but so many of the best, (R, n), (R,) -> (R,)."""
    mass = F.pad(log_best.exp().cumsum(-1), (1, 0)).gather(1, listed[:, None])[:, 0]
    return (1 - mass).clamp_min(LEAST_REST).log()


def drawn_of_the_rest(
    walk: NextStep,
    position: Tensor,
    listed: Tensor,
    best: tuple[Tensor, Tensor],
    u: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw NEW entities that were not listed.

    Args:
        walk: The distribution of the next step.
        position: Of R decisions, (R,).
        listed: How many of the best entities are left out, (R,).
        best: As ``listed_steps`` has them, (R, n) each.
        u: Numbers of (0, 1), on the host, (R,).

    Returns:
        Nodes, and the log of their probability among those, nats, (R,) each, on the
        host.
    """
    node, log_q = torch.zeros_like(position), widened(torch.zeros(len(position)))
    for few in walk.scores.new.few(torch.arange(len(position))):
        (log_p,) = fetched(walk.new.log_probs(position[few]))
        out = torch.arange(best[1].shape[1]) < listed[few, None]
        left = (
            log_p.double()
            .exp()
            .scatter_reduce(1, best[1][few], (~out).double(), "prod")
        )
        drawn = invert_cdf(left, u[few])
        mass = left.gather(1, drawn[:, None])[:, 0] / left.sum(-1)
        node[few], log_q[few] = walk.graph.node_of_entity[drawn], mass.log()
    return node, log_q


def node_probs(walk: NextStep, rows: Rows, log_weight: Tensor) -> Tensor:
    """Return the distribution of the node under a mixture of pasts.

    Args:
        walk: The distribution of the next step.
        rows: R decisions at one position.
        log_weight: Log-probabilities of their pasts in nats, (R,).

    Returns:
        Probabilities of every node, (N,); of 0, that nothing is mentioned.
    """
    here = rows.position[:1]
    rows, which = rows.distinct()
    device = log_weight.device
    log_weight = segment_logsumexp(log_weight, which, len(rows.position))
    parents, previous = walk.parents(rows), rows.previous
    log_mention = walk.log_mention(rows, parents) + log_weight[:, None]
    none, new, derived, going_on = log_mention.unbind(-1)
    named = new.exp().sum() * walk.new.log_probs(here)[0].exp()
    every, num_nodes = torch.ones(len(previous), dtype=torch.bool), walk.graph.num_nodes
    row, node, log_derived = _derived(
        parents, walk.edges, rows.position, every, num_nodes
    )
    log_derived = log_derived + derived[sent(row, device)]
    begun = walk.graph.node_of_entity
    nobody = [sent(nodes == NO_ENTITY, device) for nodes in (begun, previous)]
    return (
        none.new_zeros(num_nodes)
        .index_add(0, sent(begun, device), named.masked_fill(nobody[0], 0.0))
        .index_add(0, sent(node, device), log_derived.exp())
        .index_add(
            0, sent(previous, device), going_on.exp().masked_fill(nobody[1], 0.0)
        )
        .index_add(0, sent(torch.zeros_like(previous), device), none.exp())
    )


def _derived(
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


def _derived_of(
    parents: Parents, edges: ParentEdges, place: Tensor, past: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct nodes that decisions may derive, many of which share a past.

    Args:
        parents: Of the pasts.
        edges: Of the parents, scored where those are.
        place: The position of each past among those of the edges, (P,).
        past: Of each of R decisions, (R,).
        num_nodes: Of the graph.

    Returns:
        As ``_derived`` has them, of the R decisions.
    """
    some = torch.zeros_like(place, dtype=torch.bool)
    some[past] = True
    of, node, log_derived = _derived(parents, edges, place, some, num_nodes)
    listed, row = expand_ranges(
        torch.searchsorted(of, past), torch.searchsorted(of, past, right=True)
    )
    return row, node[listed], log_derived[sent(listed, log_derived.device)]
