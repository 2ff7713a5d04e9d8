"""Weights, words, graph and aliases of an original KGLM in this package's layout.

The originals score as their authors wrote them; what must be kept so that trained
weights mean the same (copy scores read in another order, choices that lead nowhere) is
a field of the configuration, never a switch of the code.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.convert.files.unpickling import load_pickle
from lm_latent_eval.convert.renaming import renamed
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.text import strict_json

_RENAMED = (
    (r"^_token_embedder\.weight$", "trunk.token_embeddings.weight"),
    (r"^_entity_embedder\.weight$", "trunk.entity_embeddings.weight"),
    (r"^_relation_embedder\.weight$", "trunk.relation_embeddings.weight"),
    (
        r"^(?:_rnn\._)?rnns\.(\d+)\.weight_hh_l0_raw$",
        r"trunk.rnn.layers.\1.weight_hh_l0",
    ),
    (
        r"^(?:_rnn\._)?rnns\.(\d+)\.module\.(weight_ih|bias_\w\w)_l0$",
        r"trunk.rnn.layers.\1.\2_l0",
    ),
    (r"^_fc_mention_type\.(\w+)$", r"trunk.mention.\1"),
    (r"^_fc_new_entity\.(\w+)$", r"trunk.new_\1"),
    (r"^_alias_encoder\._module\.(\w+)$", r"words.alias_encoder.\1"),
    (r"^_fc_condense\.(\w+)$", r"words.condense.\1"),
    (r"^_fc_generate\.(\w+)$", r"words.\1"),
    (r"^_fc_copy\.(\w+)$", r"words.copy.\1"),
)


_TIED = {
    "_fc_generate.weight": "_token_embedder.weight",
    "_fc_new_entity.weight": "_entity_embedder.weight",
}

Edges = Mapping[str, Sequence[tuple[str, str]]]
"""Head -> (relation, tail) in order."""
Names = Mapping[str, Sequence[Sequence[str]]]
"""Entity -> surface forms, each a list of words."""

LITERALS = {"T": "@@DATE@@", "V": "@@QUANTITY@@"}
"""First letter of a date or quantity -> the entity that annotated text calls it."""

_CLITIC = r"['’](?:s|re|ve|ll|d|m)\b"
_WORD_OF_ALIAS = re.compile(
    r"(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Inc|Co|Corp|Ltd|Bros|Mt|Gen|Gov|Lt|Prof|Rep|Rev|Sen|vs"
    r"|Ph\.D)\.(?!\w)"
    r"|(?:[^\W\d_]\.){2,}"  # initials: U.S.
    rf"|n['’]t\b|{_CLITIC}"
    r"|\d[\w.,:–-]*\w"  # numbers with what is written to them: 27.05-mile, 1990–91
    r"|[^\W\d_]+(?=n['’]t\b)"
    rf"|[^\W\d_][^\W_]*(?:(?!{_CLITIC})[&'’.][^\W_]+)*"
    r"|\w+|\.{2,}|[^\w\s]"
)


def split_alias(alias: str) -> list[str]:
    """Split a surface form into words, much as spaCy's English rules do.

    Example:
        >>> split_alias("St. Mary's cable-stayed bridge (U.S.)")
        ['St.', 'Mary', "'s", 'cable', '-', 'stayed', 'bridge', '(', 'U.S.', ')']
    """
    return _WORD_OF_ALIAS.findall(alias)


def rename_weights(
    generative: Mapping[str, Tensor],
    proposals: Mapping[str, Mapping[str, Tensor]],
    *,
    tied: bool,
) -> dict[str, Tensor]:
    """Give the originals' tensors their names in ``KGLM``.

    Args:
        generative: Name -> tensor of the original ``Kglm``.
        proposals: ``peeking`` or ``nonpeeking`` -> tensors of an original ``KglmDisc``;
            the two differ in the tokens they read.
        tied: Whether output layers share the embeddings (their copies are left out).

    Raises:
        ValueError: If a tensor has a name that no original KGLM has, or one that is
            said to be shared is not.
    """
    weights = {f"generative.{k}": v for k, v in _rename(generative, tied).items()}
    for which, original in proposals.items():
        for name, tensor in _rename(original, tied).items():
            weights[f"proposals.{which}.{name.removeprefix('trunk.')}"] = tensor.clone()
    return weights


def _rename(weights: Mapping[str, Tensor], tied: bool) -> dict[str, Tensor]:
    ours = {}
    for old, tensor in weights.items():
        if tied and old in _TIED:
            if not torch.equal(tensor, weights[_TIED[old]]):
                raise ValueError(f"{old!r} is not {_TIED[old]!r}, though tied to it")
            continue
        if re.fullmatch(r"(_rnn\._)?rnns\.\d+\.module\.weight_hh_l0", old):
            continue  # a copy of weight_hh_l0_raw, made for weight dropout
        ours[renamed(old, _RENAMED, "KGLM")] = tensor
    return ours


def read_edges(path: Path) -> Edges:
    """Read entity -> [(relation, tail), ...].

    Raises:
        ValueError: If the file is unsafe, damaged or holds something else.
    """
    table = _read_table(path)
    edges: dict[str, list[tuple[str, str]]] = {}
    for head, out in table.items():
        if not (isinstance(out, (list, tuple)) and all(map(_is_edge, out))):
            raise ValueError(
                f"{path}: {head!r:.60} has {shown(out)}; expected a list of "
                "(relation, tail)"
            )
        edges[head] = [(relation, tail) for relation, tail in out]
    return edges


def read_aliases(path: Path) -> Names:
    """Read entity -> [name, ...] and cut the names into words.

    Raises:
        ValueError: If the file is unsafe, damaged or holds something else.
    """
    table = _read_table(path)
    names: dict[str, list[list[str]]] = {}
    for entity, forms in table.items():
        known = isinstance(forms, (list, tuple, set, frozenset))
        if not (known and all(map(_is_form, forms))):
            raise ValueError(
                f"{path}: {entity!r:.60} has {shown(forms)}; expected a list of names, "
                "each a string or a list of words"
            )
        # A set has no order of its own.
        listed = (
            sorted(forms, key=str) if isinstance(forms, (set, frozenset)) else forms
        )
        cut = (split_alias(form) if isinstance(form, str) else form for form in listed)
        names[entity] = [list(form) for form in cut]
    return names


def _read_table(path: Path) -> dict[str, Any]:
    if Path(path).suffix.lower() == ".json":
        try:
            table = strict_json.read(path)
        except ValueError as err:
            raise ValueError(f"{path} is not JSON of a table ({err})") from err
    else:
        table = load_pickle(path)
    if not (isinstance(table, dict) and all(isinstance(k, str) for k in table)):
        raise ValueError(f"{path} holds no table by entity")
    return table


def _is_edge(edge: Any) -> bool:
    return _is_words(edge) and len(edge) == 2


def _is_form(form: Any) -> bool:
    return isinstance(form, str) or _is_words(form)


def _is_words(words: Any) -> bool:
    return isinstance(words, (list, tuple)) and all(isinstance(w, str) for w in words)


def build_graph(
    edges: Edges,
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
        entity_id.get(name, entity_id.get(literal_entity.get(name[:1], ""), 1))
        for name in nodes
    ]
    keys, labels = array("q"), array("q")
    for head, out in edges.items():
        if head in node_id:
            for relation, tail in out:
                keys.append(node_id[head] * len(nodes) + node_id.get(tail, 1))
                labels.append(relation_id.get(relation, 1))
    key = torch.tensor(keys, dtype=torch.long)
    order = key.argsort(stable=True)
    table = torch.zeros(len(nodes), max_aliases, max_alias_words, dtype=torch.int32)
    for name, forms in aliases.items():
        if name in node_id:
            for a, form in enumerate(forms[:max_aliases]):
                words = torch.tensor(form[:max_alias_words], dtype=torch.int32)
                table[node_id[name], a, : len(words)] = words
    return KnowledgeGraph(
        edge_key=key[order],
        edge_relation=torch.tensor(labels, dtype=torch.int32)[order],
        entity_of=torch.tensor(entity_of),
        aliases=table,
        node_names=nodes,
        relation_names=relations,
        num_entities=len(entities),
    )
