"""Conversion of KGLM checkpoints from the authors' code.

What is kept, because the weights were trained with it: choices that lead nowhere keep
their mass (``only_possible=False``, so p is sub-normalised), copy scores are read in
another order than was meant (``copy_scores="reshaped"``), dates share one entity, and
so do quantities. What is not kept: factors charged for decisions that a token does not
make, and mask constants where there should be -inf. See ``docs/kglm.md``.

The words of such a model were cut by another program, so its tokenizer cuts at white
space alone: texts are given as the original data has them, with spaces between words,
which stay as they are (case and marks count). The model begins a text after
``@@START@@``; every line of it ends with ``@@END@@``, the last one too.

Models with a shortlist choose a new entity from those of the document at hand, which
only annotated text has (``data.over_shortlist``). Without it they choose
among all entities, for which they were not trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex
from tokenizers.normalizers import Replace

from lm_latent_eval.convert.allennlp import (
    by_reading,
    check_rows,
    check_vocabularies,
    ordered_words,
    take_over,
)
from lm_latent_eval.convert.files.archive import Archive, ArchiveError, read_archive
from lm_latent_eval.convert.originals.kglm import (
    LITERALS,
    Edges,
    Names,
    build_graph,
    read_aliases,
    read_edges,
    rename_weights,
)
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM, READING_MOST
from lm_latent_eval.text.corpora import END_MARK
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.values import check

MAX_ALIASES, MAX_ALIAS_WORDS = 4, 8
"""Surface forms of an entity and words of a form: constants of the original code."""

_TABLES = {
    "tokens": "_token_embedder.weight",
    "entity_ids": "_entity_embedder.weight",
    "relations": "_relation_embedder.weight",
}
"""Namespace -> the tensor with one row an entry."""

_BY_WORD = ("_token_embedder.weight", "_fc_generate.weight", "_fc_generate.bias")


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
        archive: Of a ``kglm`` model: a tar.gz or what it unpacks to.
        output: The directory.
        knowledge_graph: Entity -> list of (relation, tail), a pickle or JSON; None is
            the file that the archive's configuration names.
        aliases: Entity -> list of names, a pickle or JSON. A name is a string, cut
            into words by ``split_alias``, or the list of its words. None is the file
            that the archive's configuration names.
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
    edges = read_edges(
        knowledge_graph or _named(original, "model", "knowledge_graph_path")
    )
    names = read_aliases(
        aliases or _named(original, "dataset_reader", "alias_database_path")
    )
    tokenizer, graph = _words_and_graph(original, edges, names)
    config = KGLMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        special_entities=_num_special(original),
        only_possible=False,
        copy_scores="reshaped",
        never_uttered=[],
        max_aliases=MAX_ALIASES,
        max_alias_words=MAX_ALIAS_WORDS,
        proposals=[name for name in READING_MOST if name in twins],
        num_unknown_types=len(original.vocabulary.get("tokens_unk", ())),
        **size,
    )
    with torch.device("meta"):  # sizes that no weights have must take no memory
        model = KGLM(config, graph)
    rename = partial(rename_weights, tied=config.tie_weights)
    take_over(model, original, twins, rename, by_word=_BY_WORD, asked_by="config.json")
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


# -- archives -------------------------------------------------------------------------


def _size(archive: Archive, kind: str) -> dict[str, Any]:
    """Return what the archive says of its model's size, checked, by our names."""
    options = archive.config["model"]
    if options["type"] != kind:
        raise ArchiveError(
            f"{archive.path} holds a model of type {options['type']!r}, not {kind!r}: "
            "generative models are kglm, proposals kglm-disc"
        )
    for namespace, tensor in _TABLES.items():
        check_rows(archive, tensor, namespace)
    for name, most in (
        ("hidden_size", sum(w.numel() for w in archive.weights.values())),
        ("num_layers", len(archive.weights)),
    ):
        if type(options.get(name)) is not int:
            raise ArchiveError(f"{archive.path}: config.json has no model.{name}")
        if not 0 < options[name] <= most:
            raise ArchiveError(
                f"{archive.path}: model.{name} in config.json is {options[name]}, "
                "which is not that of its weights"
            )
    size = {
        "token_embedding_dim": archive.weights[_TABLES["tokens"]].shape[-1],
        "entity_embedding_dim": archive.weights[_TABLES["entity_ids"]].shape[-1],
        "hidden_size": options["hidden_size"],
        "num_layers": options["num_layers"],
        "cutoff": options.get("cutoff", 30),
        "tie_weights": options.get("tie_weights", False),
        "entity_shortlist": options.get("use_shortlist", False),
    }
    try:
        check(size, {name: KGLMConfig.rules[name] for name in size})
    except ValueError as err:
        raise ArchiveError(f"{archive.path}: config.json: {err}") from err
    return size


def _check_twin(model: Archive, proposal: Archive) -> None:
    """Refuse a proposal of another size, or over other words, entities or relations."""
    wanted, found = _size(model, "kglm"), _size(proposal, "kglm-disc")
    for name in wanted:
        if found[name] != wanted[name]:
            raise ArchiveError(
                f"{proposal.path} has {name}={found[name]}, but {model.path} has "
                f"{wanted[name]}: here a model and its proposals are of one size"
            )
    check_vocabularies(model, proposal, _TABLES)


def _named(archive: Archive, section: str, option: str) -> Path:
    """Return a file that the configuration names."""
    path = archive.section(section).get(option)
    if not (isinstance(path, str) and Path(path).is_file()):
        raise ArchiveError(
            f"{archive.path}: {section}.{option} in config.json is {path!r}, which is "
            "no file here: say where it is (--knowledge-graph, --aliases)"
        )
    return Path(path)


def _num_special(archive: Archive) -> int:
    """Count the rows at the start of the entity table that are no entity."""
    names = archive.namespace("entity_ids")
    return next((i for i, n in enumerate(names) if not n.startswith("@@")), len(names))


# -- words and graph ------------------------------------------------------------------


def _words_and_graph(
    archive: Archive, edges: Edges, names: Names
) -> tuple[WordTokenizer, KnowledgeGraph]:
    """Number the words, then those that only aliases have, and build the graph."""
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
