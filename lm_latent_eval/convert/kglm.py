"""Conversion of KGLM checkpoints from the authors' code.

Three properties of the weights are kept as fields of the configuration: impossible
choices keep their mass (``only_possible=False``, so p is sub-normalised), copy scores
are read in another order than intended (``copy_scores="reshaped"``), and dates share
one entity, as quantities do. Two are not: factors for decisions that a token does not
make, and mask constants instead of -inf. See ``docs/kglm.md``.

Words are those of another program, so the tokenizer splits at white space alone: texts
are given as the original data has them, with spaces between words (case and marks
count). The model begins a text after ``@@START@@``; every line of it ends with
``@@END@@``, the last one too.

Models with a shortlist choose a new entity from those of the current document, which
only annotated text has. Here they choose among all entities, for which they were not
trained.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from tokenizers import Regex
from tokenizers.normalizers import Replace
from torch import Tensor

from lm_latent_eval.convert.allennlp import (
    by_reading,
    check_vocabularies,
    matrix,
    ordered_words,
    take_over,
)
from lm_latent_eval.convert.archive import Archive, read_archive
from lm_latent_eval.convert.originals import OriginalError, renamed
from lm_latent_eval.convert.pickles import load_pickle
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph, alias_table
from lm_latent_eval.models.kglm.modeling import KGLM, READING_MOST
from lm_latent_eval.text.corpora import END_MARK
from lm_latent_eval.text.files import read_json
from lm_latent_eval.text.words import WordTokenizer

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
_COPY = r"(_rnn\._)?rnns\.\d+\.module\.weight_hh_l0"
"""Copy of weight_hh_l0_raw for weight dropout."""
_TIED = {
    "_fc_generate.weight": "_token_embedder.weight",
    "_fc_new_entity.weight": "_entity_embedder.weight",
}

Edges = Mapping[str, Sequence[tuple[str, str]]]
"""Head -> (relation, tail) in order."""
Names = Mapping[str, Sequence[Sequence[str]]]
"""Entity -> surface forms, each a list of words."""

LITERALS = {"T": "@@DATE@@", "V": "@@QUANTITY@@"}
"""First letter of a date or quantity -> its entity in annotated text."""

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


def rename_weights(weights: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Give the tensors of an original ``Kglm`` or ``KglmDisc`` our names.

    Args:
        weights: Name -> tensor.
        tied: Whether output layers share the embeddings (their copies are left out).

    Raises:
        ValueError: If a tensor's name is unknown, or a tied one differs.
    """
    shared = _TIED if tied else {}
    for old, new in shared.items():
        if old in weights and not torch.equal(weights[old], weights[new]):
            raise ValueError(f"{old!r} is not {new!r}, though tied to it")
    return renamed(weights, _RENAMED, "KGLM", [_COPY, *map(re.escape, shared)])


def read_edges(path: Path) -> Edges:
    """Read entity -> [(relation, tail), ...].

    Raises:
        ValueError: If the file is unsafe, damaged or holds something else.
    """
    table = _read_table(path)
    edges: dict[str, list[tuple[str, str]]] = {}
    for head, out in table.items():
        listed = isinstance(out, (list, tuple))
        if not (listed and all(_is_words(edge) and len(edge) == 2 for edge in out)):
            raise ValueError(
                f"{path}: {head!r:.60} has {shown(out)}; expected a list of "
                "(relation, tail)"
            )
        edges[head] = [(relation, tail) for relation, tail in out]
    return edges


def read_aliases(path: Path) -> Names:
    """Read entity -> [name, ...] and split the names into words.

    Raises:
        ValueError: If the file is unsafe, damaged or holds something else.
    """
    table = _read_table(path)
    names: dict[str, list[list[str]]] = {}
    for entity, forms in table.items():
        is_list = isinstance(forms, (list, tuple, set, frozenset))
        if not (is_list and all(isinstance(f, str) or _is_words(f) for f in forms)):
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
            table = read_json(path)
        except ValueError as err:
            raise ValueError(f"{path} is not JSON of a table ({err})") from err
    else:
        table = load_pickle(path)
    if not (isinstance(table, dict) and all(isinstance(k, str) for k in table)):
        raise ValueError(f"{path} holds no table by entity")
    return table


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
        literal_entity: First letter of a node without an entity of its own -> its
            shared entity (the reader's dates and quantities); others are unknown.
        max_aliases: Number of surface forms kept of a node.
        max_alias_words: Number of words kept of a surface form.
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
    forms = ((node_id[name], f) for name, f in aliases.items() if name in node_id)
    table = alias_table(forms, (len(nodes), max_aliases, max_alias_words))
    return KnowledgeGraph(
        edge_key=key[order],
        edge_relation=torch.tensor(labels, dtype=torch.int32)[order],
        entity_of=torch.tensor(entity_of),
        aliases=table,
        node_names=nodes,
        relation_names=relations,
        num_entities=len(entities),
    )


MAX_ALIASES, MAX_ALIAS_WORDS = 4, 8
"""Surface forms of an entity and words of a form: constants of the original code."""

_LAYER = re.compile(r"(_rnn\._)?rnns\.\d+\.weight_hh_l0_raw")
_TABLES = {
    "_token_embedder.weight": "tokens",
    "_fc_generate.weight": "tokens",
    "_fc_generate.bias": "tokens",
    "_entity_embedder.weight": "entity_ids",
    "_relation_embedder.weight": "relations",
}
"""Tensors with one row an entry -> their vocabulary."""


def convert(
    archive: Path,
    output: Path,
    *,
    knowledge_graph: Path | None = None,
    aliases: Path | None = None,
    proposals: Iterable[Path] = (),
) -> KGLM:
    """Write a checkpoint directory of an original model.

    Args:
        archive: Archive of a ``kglm`` model: a tar.gz or its unpacked folder.
        output: The directory.
        knowledge_graph: Entity -> list of (relation, tail), a pickle or JSON; None is
            the file named in the archive's configuration.
        aliases: Entity -> list of names, a pickle or JSON. A name is a string, split
            into words by ``split_alias``, or the list of its words. None is the file
            named in the archive's configuration.
        proposals: Archives of ``kglm-disc`` models; one whose reader has an ``offset``
            does not peek. Without any, p's own ``prior`` proposes.

    Returns:
        The model.

    Raises:
        ValueError: If something is missing, damaged, unsafe, or of another model.
    """
    original = read_archive(archive)
    size = _size(original, "kglm")
    twins = by_reading(map(read_archive, proposals))
    for twin in twins.values():
        _check_twin(original, twin)
    graph_file = knowledge_graph or _named(original, "model", "knowledge_graph_path")
    alias_file = aliases or _named(original, "dataset_reader", "alias_database_path")
    edges, names = read_edges(graph_file), read_aliases(alias_file)
    entities = {*original.vocabulary.get("raw_entity_ids", ())}
    for path, table in ((graph_file, edges), (alias_file, names)):
        if table and entities.isdisjoint(table):
            raise ValueError(
                f"{path} and {archive} have no entity in common: they are of different "
                "models"
            )
    tokenizer, graph = _words_and_graph(original, edges, names)
    marks = takewhile(lambda n: n.startswith("@@"), original.namespace("entity_ids"))
    try:
        config = KGLMConfig(
            vocab_size=tokenizer.vocab_size,
            num_words=tokenizer.num_words,
            num_entities=graph.num_entities,
            num_relations=len(graph.relation_names),
            special_entities=len([*marks]),
            only_possible=False,
            copy_scores="reshaped",
            never_uttered=[],
            max_aliases=MAX_ALIASES,
            max_alias_words=MAX_ALIAS_WORDS,
            proposals=[name for name in READING_MOST if name in twins],
            num_unknown_types=len(original.vocabulary.get("tokens_unk", ())),
            **size,
        )
    except ValueError as err:
        raise OriginalError(f"{archive}: config.json: {err}") from err
    rename = partial(rename_weights, tied=config.tie_weights)
    build = partial(KGLM, config, graph)
    model = take_over(build, original, twins, rename, tables=_TABLES)
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


# -- archives -------------------------------------------------------------------------


def _size(archive: Archive, kind: str) -> dict[str, Any]:
    options = archive.config["model"]
    if options["type"] != kind:
        raise OriginalError(
            f"{archive.path} holds a model of type {options['type']!r}, not {kind!r}: "
            "generative models are kglm, proposals kglm-disc"
        )
    layers = [name for name in archive.weights if _LAYER.fullmatch(name)]
    first = min(layers, default="rnns.0.weight_hh_l0_raw")
    return {
        "token_embedding_dim": matrix(archive, "_token_embedder.weight").shape[1],
        "entity_embedding_dim": matrix(archive, "_entity_embedder.weight").shape[1],
        "hidden_size": matrix(archive, first).shape[1],
        "num_layers": len(layers),
        "cutoff": options.get("cutoff", 30),
        "tie_weights": options.get("tie_weights", False),
        "entity_shortlist": options.get("use_shortlist", False),
    }


def _check_twin(model: Archive, proposal: Archive) -> None:
    """Refuse a proposal of another size, or over other words, entities or relations."""
    size, other = _size(model, "kglm"), _size(proposal, "kglm-disc")
    for name in size:
        if other[name] != size[name]:
            raise OriginalError(
                f"{proposal.path} has {name}={other[name]}, but {model.path} has "
                f"{size[name]}: here a model and its proposals are of one size"
            )
    check_vocabularies(model, proposal, dict.fromkeys(_TABLES.values()))


def _named(archive: Archive, section: str, option: str) -> Path:
    path = archive.section(section).get(option)
    if not (isinstance(path, str) and Path(path).is_file()):
        raise OriginalError(
            f"{archive.path}: {section}.{option} in config.json is {path!r}, which is "
            "no file here: say where it is (--knowledge-graph, --aliases)"
        )
    return Path(path)


# -- words and graph ------------------------------------------------------------------


def _words_and_graph(
    archive: Archive, edges: Edges, names: Names
) -> tuple[WordTokenizer, KnowledgeGraph]:
    nodes = archive.namespace("raw_entity_ids")
    kept = {
        node: [form[:MAX_ALIAS_WORDS] for form in names.get(node, ())[:MAX_ALIASES]]
        for node in nodes
    }
    words = ordered_words(archive)
    aliases = (word for forms in kept.values() for form in forms for word in form)
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*words, *aliases]))}
    tokenizer = WordTokenizer.at_white_space(
        vocab,
        len(words),
        normalizer=Replace(Regex(r"\s*\n\s*"), f" {END_MARK} "),
    )
    graph = build_graph(
        edges,
        {n: [[vocab[w] for w in form] for form in forms] for n, forms in kept.items()},
        nodes=nodes,
        entities=archive.namespace("entity_ids"),
        relations=archive.namespace("relations"),
        literal_entity=LITERALS,
        max_aliases=MAX_ALIASES,
        max_alias_words=MAX_ALIAS_WORDS,
    )
    return tokenizer, graph
