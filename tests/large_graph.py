"""Graphs of any size, made of random numbers in a moment, and models over them."""

from __future__ import annotations

import numpy as np
import torch

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM

NUM_WORDS, NUM_RELATIONS = 200, 20


def graph(num_nodes: int, num_edges: int, *, seed: int = 0) -> KnowledgeGraph:
    """Every node has an edge to itself and two names of two words."""
    rng = np.random.default_rng(seed)
    loops = np.arange(1, num_nodes) * (num_nodes + 1)
    ends = rng.integers(1, num_nodes, size=(2, num_edges - len(loops)))
    key = np.sort(np.concatenate([loops, ends[0] * num_nodes + ends[1]]))
    relation = rng.integers(1, NUM_RELATIONS, size=len(key), dtype=np.int32)
    aliases = rng.integers(4, NUM_WORDS, size=(num_nodes, 2, 2), dtype=np.int32)
    aliases[0] = 0
    return KnowledgeGraph(
        edge_key=torch.from_numpy(key),
        edge_relation=torch.from_numpy(relation),
        entity_of=torch.arange(num_nodes),
        aliases=torch.from_numpy(aliases),
        node_names=[f"node {i}" for i in range(num_nodes)],
        relation_names=[f"relation {i}" for i in range(NUM_RELATIONS)],
        num_entities=num_nodes,
    )


def kglm(graph: KnowledgeGraph, *, proposals: tuple[str, ...] = ("smoothing",)) -> KGLM:
    """A small untrained model."""
    config = KGLMConfig(
        vocab_size=NUM_WORDS,
        num_entities=graph.num_entities,
        num_relations=NUM_RELATIONS,
        token_embedding_dim=8,
        entity_embedding_dim=8,
        hidden_size=8,
        num_layers=1,
        cutoff=10,
        max_aliases=2,
        max_alias_words=2,
        proposals=list(proposals),
    )
    torch.manual_seed(0)
    return KGLM(config, graph).eval().requires_grad_(False)
