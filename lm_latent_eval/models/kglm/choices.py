"""What a walk may choose next: ranked for a search, summed for a prediction."""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.kglm.edges import ParentEdges
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.ragged import (
    distinct_pairs,
    expand_ranges,
    least_of_best,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.steps import Mention, Parents, RankedSteps, Rows
from lm_latent_eval.models.kglm.walk import NextStep
from lm_latent_eval.models.ties import GRID, ranks


def ranked_steps(
    walk: NextStep,
    rows: Rows,
    group: Tensor,
    score: Tensor,
    width: int,
    best: tuple[Tensor, Tensor],
) -> RankedSteps:
    r"""List the choices that may be among the best of a group of walks.

    Walks are ranked by log q, or, if it is known what is ``expected`` of the rest
    of the text, by log p of walk and words so far plus that: by all that went into
    the tilt, less what was expected and has been paid. Up to a number that the
    walks of a text share,

    .. math:: \log p(z_{\le t}, x_{\le t}) + \log \beta_{t+1}(z_{\le t}) =
        \sum_{i \le t} \log q(z_i) + \log Z_i - \log \beta_i(z_{<i})

    What cannot be among the ``width`` best is not listed: a choice below as many
    that are known at once, without any DERIVED, or a NEW one too many. Every walk
    has the same NEW entities to choose from, so of the one that ranks i-th (from 1)
    only the first ``width`` / i can be among the ``width`` best.

    Args:
        walk: The distribution of the next steps.
        rows: R decisions.
        group: Which of them compete, at one position each, non-decreasing, (R,).
        score: What the walks so far are ranked by, nats, (R,) float64.
        width: How many of a group are wanted.
        best: The ``width`` best NEW entities at the position of every group: log
            p_new and entity, on the host, (G, width) each.
    """
    parents = walk.parents(rows)
    position, where = rows.position.unique(return_inverse=True)
    tilted = walk.log_tilted(rows, parents)
    paid = walk.expected_after(rows.position, rows.window)
    edges, (tilted, paid, log_parent) = walk.edges.select(position).fetched_with(
        tilted, paid, parents.log_prob
    )
    if walk.expected is not None:
        score = score + tilted.logsumexp(-1) - paid
    scores = score[:, None] + tilted.log_softmax(-1)
    scores[rows.previous == NO_ENTITY, Mention.CONTINUE] = -torch.inf
    none, new, derived, again = scores.unbind(-1)
    log_best, entity = best
    best_new = new + log_best[group, 0]
    known = torch.stack([none, best_new, again], -1)
    enough = least_of_best(group, known, width)[group] - GRID  # against rounding

    (able,) = (best_new >= enough).nonzero(as_tuple=True)
    order, rank = ranked_within(group[able], ranks(new[able]))
    most = (width // (rank + 1)).clamp_max(entity.shape[1])
    place, ranked = expand_ranges(torch.zeros_like(most), most)
    new_row = able[order[ranked]]
    here = group[new_row], place
    new_node, log_new = walk.graph.node_of_entity[entity[here]], log_best[here]
    derived_row, derived_node, log_derived = _derived(
        parents._replace(log_prob=log_parent),
        edges,
        where,
        derived >= enough,
        walk.graph.num_nodes,
    )
    every = torch.arange(len(score))
    sure = log_new.new_zeros(len(every))
    parts = [
        (Mention.NONE, every, torch.zeros_like(every), sure),
        (Mention.NEW, new_row, new_node, log_new),
        (Mention.DERIVED, derived_row, derived_node, log_derived),
        (Mention.CONTINUE, every, rows.previous, sure),
    ]
    row = torch.cat([part[1] for part in parts])
    mention = torch.cat([torch.full_like(r, m) for m, r, _, _ in parts])
    node = torch.cat([part[2] for part in parts])
    score = scores[row, mention] + torch.cat([part[3] for part in parts])
    possible = (score > -torch.inf) & (score >= enough[row])
    possible &= (node != NO_ENTITY) | (mention == Mention.NONE)
    (keep,) = possible.nonzero(as_tuple=True)
    # In an order that no score decides, for those that tie.
    choice = row[keep] * len(Mention) + mention[keep]
    keep = keep[(choice * walk.graph.num_nodes + node[keep]).argsort()]
    return RankedSteps(row[keep], mention[keep], node[keep], score[keep])


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
    none, new, derived, again = log_mention.unbind(-1)
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
        .index_add(0, sent(previous, device), again.exp().masked_fill(nobody[1], 0.0))
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
