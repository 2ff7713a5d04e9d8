"""Weights and settings of an original LRLM in this package's layout.

Words 0 and 1 change places (unknown and padding), relations with a number below 0
follow the others, and the vector of unknown objects follows those of the known ones.
Source: the code of Hayashi et al. (2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ROWS = (
    ("word_embed.weight", "words.embedding.weight"),
    ("word_embed.embed_layers.0.weight", "words.embedding.weight"),
    ("word_predictor.layer2.weight", "words.weight"),
    ("word_predictor.layer2.bias", "words.bias"),
    ("word_predictor.out_layers.0.weight", "words.weight"),
    ("word_predictor.out_layers.0.bias", "words.bias"),
)
"""Tensors with a row a word."""
PREFIXES = (
    ("word_predictor.layer1.", "words.inner."),
    ("word_predictor.out_projs.", "words.projections."),
    ("word_predictor.cluster_", "words.cluster_"),
    ("hid_to_fact.layer1.", "to_fact.0."),
    ("hid_to_fact.layer2.", "to_fact.2."),
    ("hid_to_fact.", "to_fact."),
    ("hid_to_alias.", "to_alias."),
    ("rnn.proj_input.", "trunk.project."),
)
LAYER = (
    ("dec_attn.qkv_net.", "attending."),
    ("dec_attn.r_net.", "relative."),
    ("dec_attn.o_net.", "attended."),
    ("dec_attn.layer_norm.", "attention_norm."),
    ("pos_ff.core_net.0.", "inner."),
    ("pos_ff.core_net.3.", "outer."),
    ("pos_ff.layer_norm.", "feed_norm."),
)
"""Parts of a layer of the original's Transformer-XL."""


def words_in_order(column: Tensor) -> Tensor:
    """Put padding before unknown."""
    return torch.cat([column[[1, 0]], column[2:]])


def relation_number(rel_typ: int, num_relations: int, num_special: int) -> int:
    """Return the row of a relation; those below 0 are counted from the last one on."""
    if rel_typ >= 0:
        return rel_typ
    return num_relations + num_special + rel_typ + 1


def object_number(obj_id: int, num_objects: int) -> int:
    """Return the row of an object; the one after the last is unknown."""
    return num_objects if obj_id < 0 else obj_id


def weights_of(original: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Rename the tensors that an LRLM has, constants among them."""
    renamed = {
        new + name.removeprefix(old): tensor
        for name, tensor in original.items()
        for old, new in PREFIXES
        if name.startswith(old) and not _shadowed(name, old)
    }
    for old, new in ROWS:
        if old in original and not (tied and new == "words.weight"):
            renamed[new] = words_in_order(original[old])
    renamed |= {n: original[n] for n in original if n.startswith("selector.")}
    for name, tensor in original.items():
        if name.startswith("rnn.lstm."):
            kind, _, layer = name.removeprefix("rnn.lstm.").rpartition("_l")
            renamed[f"trunk.layers.{layer}.{kind}_l0"] = tensor
        if name.startswith("rnn.layers."):
            layer, _, part = name.removeprefix("rnn.layers.").partition(".")
            for old, new in LAYER:
                if part.startswith(old):
                    end = part.removeprefix(old)
                    renamed[f"trunk.layers.{layer}.{new}{end}"] = tensor
    if "rnn.r_w_bias" in original:
        biases = [original["rnn.r_w_bias"], original["rnn.r_r_bias"]]
        renamed["trunk.biases"] = torch.stack(biases)
        renamed["trunk.frequencies"] = original["rnn.pos_embed.inv_freq"]
    return renamed | _fact_tables(original)


def _shadowed(name: str, prefix: str) -> bool:
    """Whether an earlier prefix takes a name."""
    return prefix == "hid_to_fact." and ".layer" in name


def _fact_tables(original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    special = [
        original[f"special_rel_vecs.{n}"]
        for n in range(sum(name.startswith("special_rel_vecs.") for name in original))
    ]
    relations = original.get("relation_embed.weight", original["relation_vec"])
    tables = {
        "facts.relation.weight": torch.cat([relations, torch.stack(special)]),
        "facts.object.weight": torch.cat(
            [original["entity_vec"], original["unk_entity_vec"][None]]
        ),
        "facts.alias.weight": original["alias_vec"],
    }
    return tables


def config_of(
    options: Mapping[str, Any], original: Mapping[str, Tensor], vocab_size: int
) -> dict[str, Any]:
    """Return what the original's options say of any of its models.

    Args:
        options: Named as the original's command names them.
        original: The weights, for the sizes of the tables.
        vocab_size: V.
    """
    cutoffs: Sequence[int] = options["adaptive_cutoffs"] or []
    special = sum(name.startswith("special_rel_vecs.") for name in original)
    return {
        "vocab_size": vocab_size,
        "num_relations": len(original["relation_vec"]) + special,
        "num_objects": len(original["entity_vec"]) + 1,
        "num_pieces": 0,
        "embedding_dim": options["embed_size"],
        "hidden_size": options["hidden_size"],
        "num_layers": options["num_layers"],
        "predictor_dim": options["vocab_mlp_hidden_dim"],
        "activation": options["vocab_mlp_activation"],
        "cutoffs": [c for c in cutoffs if c < vocab_size]
        if options["adaptive_embed"]
        else [],
        "tie_weights": options["tie_embed_weights"],
        "fact_dim": options["kb_embed_dim"],
        "alias_dim": original["alias_vec"].shape[1],
        "knowledge_vector": options["use_knowledge_embed"],
        "oracle": options["alias_disamb"] == "oracle",
        "never_uttered": [],
    }


def lrlm_config_of(
    options: Mapping[str, Any], original: Mapping[str, Tensor], vocab_size: int
) -> dict[str, Any]:
    """Return what the original's options say of an LRLM; see ``config_of``."""
    config = config_of(options, original, vocab_size)
    config["fact_hidden"] = inner_size(options) if options["use_rel_mlp"] else 0
    if "rnn.r_w_bias" not in original:
        return config
    return config | {
        "trunk": "transformer_xl",
        "num_heads": options["num_heads"],
        "head_dim": options["head_dim"],
        "inner_dim": options["ffn_inner_dim"],
        "chunk_size": options.get("bptt", 150),
        "memory_size": options["memory_size"],
        "pre_norm": options["pre_lnorm"],
        "memory_rule": "published",
    }


def inner_size(options: Mapping[str, Any]) -> int:
    """Return the inner size of the original's map to facts."""
    size: int = options["fact_key_mlp_hidden_dim"]
    return 4 * int(options["kb_embed_dim"]) if size == -1 else size
