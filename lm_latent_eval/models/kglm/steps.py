"""Steps of given walks: log q, and sums over the next node for prediction.

Walks and what is behind them are on the host, log-probabilities where the scores are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import distinct_pairs, segment_logsumexp
from lm_latent_eval.models.kglm.choices import log_p_walks
from lm_latent_eval.models.kglm.encoding import Encoded
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import (
    NextStep,
    Parents,
    Rows,
    Walks,
)
from lm_latent_eval.models.kglm.scores import ParentEdges
from lm_latent_eval.models.kglm.tables import TextScores, tables_of

STEPS_AT_ONCE = 1 << 16
"""Steps of walks that are scored at a time."""


def windows(history: Tensor, node: Tensor) -> Tensor:
    """Return the window of nodes before each token.

    Args:
        history: Nodes of the ``cutoff`` tokens before the piece, (B, K, W).
        node: Nodes of the piece, (B, K, T).

    Returns:
        For token t the nodes of t - W .. t - 1, shape (B, K, T, W), a view.
    """
    path = torch.cat([history, node], -1)
    return path.unfold(-1, history.shape[-1], 1)[..., :-1, :]


def log_prob_walks(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor
) -> Tensor:
    """Return log p(z_t | z_<t) of walks in nats, (B, K, T); 0 past the end.

    Walks and the nodes before the piece, (B, K, W), are on the host, and so is how many
    tokens of walks are scored, (B, 1 or K).
    """
    num_tokens = walks.node.shape[-1]
    inside = torch.arange(num_tokens) < length[..., None]
    inside = inside.expand_as(walks.node)
    b, k, t = inside.nonzero(as_tuple=True)
    behind = windows(history, walks.node)
    parts = [
        walk.log_prob(
            Rows(bb * num_tokens + tt, behind[bb, kk, tt]),
            walks.mention[bb, kk, tt],
            walks.node[bb, kk, tt],
        )
        for bb, kk, tt in zip(
            *(index.split(STEPS_AT_ONCE) for index in (b, k, t)), strict=True
        )
    ]
    result = walk.scores.mention.new_zeros(inside.numel())
    if parts:
        (index,) = inside.flatten().nonzero(as_tuple=True)
        result = result.index_copy(0, sent(index, result.device), torch.cat(parts))
    return result.view(inside.shape)


def log_p_of(encoded: Encoded, history: Tensor, walks: Walks) -> Tensor:
    """Return log p of walks without their words in nats, (B, K) float64 on the host.

    As ``log_prob_walks`` sums it, by tables of the nodes that the walks have.
    """
    scores = TextScores(encoded.walk, encoded.batch, encoded.text, None, complete=True)
    path = torch.cat([history, walks.node], -1)
    nobody = torch.zeros(1, dtype=torch.long)
    rows = [torch.cat([nobody, each.flatten()]).unique() for each in path]
    cutoff = history.shape[-1]
    tables = tables_of(scores, pad_sequence(rows, batch_first=True), cutoff)
    log_p = torch.zeros(path.shape[:2], dtype=torch.float64)
    for b, length in enumerate(encoded.batch.on_host[1].tolist()):
        state = torch.searchsorted(rows[b], path[b, :, : cutoff + length].contiguous())
        mention = walks.mention[b, :, :length].contiguous()
        found = log_p_walks(
            tables[b], encoded.walk.only_possible, state.numpy(), mention.numpy()
        )
        log_p[b] = torch.from_numpy(found)
    return log_p


# -- choices, summed for prediction --------------------------------------------------


def node_probs(walk: NextStep, rows: Rows, log_weight: Tensor) -> Tensor:
    """Return the distribution of the next node under a mixture of histories.

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
    row, node, log_derived = derived_nodes(
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
