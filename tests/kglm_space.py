"""Every possible walk over a short text, listed by brute force.

Written from the definition of a walk, without the code under test: per token nothing,
any introducible entity, any node behind an edge of a recent entity, or the same again.
"""

from __future__ import annotations

import torch

from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.latents import Mention, Walks
from lm_latent_eval.models.kglm.modeling import KGLM


def walks_of(model: KGLM, num_tokens: int) -> Walks:
    """List all walks of a model."""
    config = model.config
    return every_walk(
        model.knowledge, num_tokens, config.cutoff, config.special_entities
    )


def every_walk(
    graph: KnowledgeGraph, num_tokens: int, cutoff: int, special_entities: int
) -> Walks:
    """List all walks, (1, number of walks, T)."""
    entity_of = graph.entity_of.tolist()
    own = [n for n in range(graph.num_nodes) if entity_of.count(entity_of[n]) == 1]
    introducible = [n for n in own if entity_of[n] >= special_entities and n != 0]
    tails: dict[int, set[int]] = {}
    for key in graph.edge_key.tolist():
        head, tail = divmod(key, graph.num_nodes)
        tails.setdefault(head, set()).add(tail)

    def extend(walk: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        if len(walk) == num_tokens:
            return [walk]
        recent = {node for _, node in walk[-cutoff:] if node in own}
        reachable = {tail for node in recent for tail in tails.get(node, ())}
        steps = [(Mention.NONE, 0)]
        steps += [(Mention.NEW, node) for node in introducible]
        steps += [(Mention.DERIVED, node) for node in sorted(reachable)]
        if walk and walk[-1][1]:
            steps += [(Mention.CONTINUE, walk[-1][1])]
        return [full for step in steps for full in extend([*walk, step])]

    walks = torch.tensor(extend([]))
    return Walks(walks[None, :, :, 0], walks[None, :, :, 1])
