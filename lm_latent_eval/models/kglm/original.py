"""Takes over the parts of an original KGLM: weights, vocabularies, graph, aliases.

The originals score as their authors wrote them; what must be kept so that trained
weights mean the same (copy scores read in another order, choices that lead nowhere) is
a field of the configuration, never a switch of the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.graph import KnowledgeGraph

SPECIAL_ENTITIES = 4  # padding, unknown, date, quantity

_RENAMED = (
    (r"^_token_embedder\.weight$", "trunk.token_embeddings.weight"),
    (r"^_entity_embedder\.weight$", "trunk.entity_embeddings.weight"),
    (r"^_relation_embedder\.weight$", "trunk.relation_embeddings.weight"),
    (r"^_rnn\._rnns\.(\d+)\.weight_hh_l0_raw$", r"trunk.rnn.layers.\1.weight_hh_l0"),
    (
        r"^_rnn\._rnns\.(\d+)\.module\.(weight_ih|bias_\w\w)_l0$",
        r"trunk.rnn.layers.\1.\2_l0",
    ),
    (r"^_fc_mention_type\.(\w+)$", r"trunk.mention.\1"),
    (r"^_fc_new_entity\.(\w+)$", r"trunk.new_\1"),
    (r"^_alias_encoder\._module\.(\w+)$", r"words.alias_encoder.\1"),
    (r"^_fc_condense\.(\w+)$", r"words.condense.\1"),
    (r"^_fc_generate\.(\w+)$", r"words.\1"),
    (r"^_fc_copy\.(\w+)$", r"words.copy.\1"),
)


def rename_weights(
    generative: Mapping[str, Tensor], proposal: Mapping[str, Tensor], *, tied: bool
) -> dict[str, Tensor]:
    """Give the originals' tensors their names in ``KGLM``.

    The originals have one proposal; it serves as the peeking and as the non-peeking
    one, which differ in the tokens it reads.

    Args:
        generative: Name -> tensor of the original ``Kglm``.
        proposal: Name -> tensor of the original ``KglmDisc``.
        tied: Whether output layers share the embeddings (their copies are left out).

    Raises:
        ValueError: If a tensor has a name that no original KGLM has.
    """
    weights = {f"generative.{k}": v for k, v in _rename(generative).items()}
    for name, tensor in _rename(proposal).items():
        for which in ("peeking", "nonpeeking"):
            weights[f"proposals.{which}.{name.removeprefix('trunk.')}"] = tensor.clone()
    shared = ("words.weight", "new_weight") if tied else ()
    return {k: v for k, v in weights.items() if not k.endswith(shared or ("\0",))}


def _rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for old, tensor in weights.items():
        if re.fullmatch(r"_rnn\._rnns\.\d+\.module\.weight_hh_l0", old):
            continue  # a copy of weight_hh_l0_raw, made for weight dropout
        for pattern, new in _RENAMED:
            name, hits = re.subn(pattern, new, old)
            if hits:
                renamed[name] = tensor
                break
        else:
            raise ValueError(f"{old!r} is not a tensor of an original KGLM")
    return renamed


def build_graph(
    edges: Mapping[str, Sequence[tuple[str, str]]],
    aliases: Mapping[str, Sequence[Sequence[int]]],
    *,
    nodes: Sequence[str],
    entities: Sequence[str],
    relations: Sequence[str],
    literal_entity: Mapping[str, str],
    max_aliases: int,
    max_alias_words: int,
) -> KnowledgeGraph:
    """Build the graph over the originals' numbering.

    Args:
        edges: Head -> (relation, tail) in order; names that a vocabulary lacks become
            its unknown entry 1.
        aliases: Name -> surface forms as extended word ids.
        nodes: The original ``raw_entity_ids`` vocabulary.
        entities: The original ``entity_ids`` vocabulary.
        relations: The original ``relations`` vocabulary.
        literal_entity: First letter of a node without an entity of its own -> the
            entity that it shares (the reader's dates and quantities); others are
            unknown.
        max_aliases: Surface forms kept a node.
        max_alias_words: Words kept a surface form.
    """
    node_id = {name: i for i, name in enumerate(nodes)}
    entity_id = {name: i for i, name in enumerate(entities)}
    relation_id = {name: i for i, name in enumerate(relations)}
    entity_of = [
        entity_id.get(name, entity_id.get(literal_entity.get(name[0], ""), 1))
        for name in nodes
    ]
    triples = sorted(
        (
            node_id[head] * len(nodes) + node_id.get(tail, 1),
            relation_id.get(relation, 1),
        )
        for head, out in edges.items()
        if head in node_id
        for relation, tail in out
    )
    table = torch.zeros(len(nodes), max_aliases, max_alias_words, dtype=torch.int32)
    for name, forms in aliases.items():
        if name in node_id:
            for a, form in enumerate(forms[:max_aliases]):
                words = torch.tensor(form[:max_alias_words], dtype=torch.int32)
                table[node_id[name], a, : len(words)] = words
    return KnowledgeGraph(
        edge_key=torch.tensor([key for key, _ in triples], dtype=torch.long),
        edge_relation=torch.tensor([r for _, r in triples], dtype=torch.int32),
        entity_of=torch.tensor(entity_of),
        aliases=table,
        node_names=nodes,
        relation_names=relations,
        num_entities=len(entities),
    )
