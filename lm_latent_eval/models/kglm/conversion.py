"""Turns a KGLM that its authors' code trained into a checkpoint of ours.

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
only annotated text has (``linked_wikitext.over_shortlist``). Without it they choose
among all entities, for which they were not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from lm_latent_eval.models import allennlp, checkpoint
from lm_latent_eval.models.allennlp import Archive, ArchiveError, read_archive
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM, READING_MOST
from lm_latent_eval.models.kglm.original import (
    LITERALS,
    Edges,
    Names,
    build_graph,
    read_aliases,
    read_edges,
    rename_weights,
)
from lm_latent_eval.text.corpora import END_MARK, START_MARK
from lm_latent_eval.text.words import END, UNKNOWN, WordTokenizer

SPECIAL_WORDS = (allennlp.PADDING, allennlp.UNKNOWN, START_MARK, END_MARK)
"""In the order of our ids; where a vocabulary has another, its words are renumbered."""

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
    twins: dict[str, Archive] = {}
    for twin in map(read_archive, proposals):
        _check_twin(original, twin)
        if (reading := _reading(twin)) in twins:
            raise ArchiveError(f"{twin.path} is a second {reading} proposal: give one")
        twins[reading] = twin
    edges = read_edges(
        knowledge_graph or _named(original, "model", "knowledge_graph_path")
    )
    names = read_aliases(
        aliases or _named(original, "dataset_reader", "alias_database_path")
    )
    order = _order(original)
    tokenizer, graph = _words_and_graph(original, order, edges, names)
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
    weights = _renamed(original, order, config.tie_weights)
    for reading, twin in twins.items():
        weights |= _renamed(twin, order, config.tie_weights, reading)
    model = KGLM(config, graph)
    _check_shapes(model, weights, original, twins)
    model.load_state_dict(weights, assign=True)  # in the precision of the archive
    model.eval()  # type: ignore[no-untyped-call]
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
        entries = archive.namespace(namespace)
        rows = len(archive.weights.get(tensor, ()))
        if rows != len(entries):
            raise ArchiveError(
                f"{archive.path}: {tensor} in weights.th has {rows} rows, but "
                f"vocabulary/{namespace}.txt has {len(entries)} entries, padding "
                "included: they are of different models"
            )
    for name in ("hidden_size", "num_layers"):
        if not isinstance(options.get(name), int):
            raise ArchiveError(f"{archive.path}: config.json has no model.{name}")
    return {
        "token_embedding_dim": archive.weights[_TABLES["tokens"]].shape[-1],
        "entity_embedding_dim": archive.weights[_TABLES["entity_ids"]].shape[-1],
        "hidden_size": options["hidden_size"],
        "num_layers": options["num_layers"],
        "cutoff": options.get("cutoff", 30),
        "tie_weights": options.get("tie_weights", False),
        "entity_shortlist": options.get("use_shortlist", False),
    }


def _check_twin(model: Archive, proposal: Archive) -> None:
    """Refuse a proposal of another size, or over other words, entities or relations."""
    wanted, found = _size(model, "kglm"), _size(proposal, "kglm-disc")
    for name in wanted:
        if found[name] != wanted[name]:
            raise ArchiveError(
                f"{proposal.path} has {name}={found[name]}, but {model.path} has "
                f"{wanted[name]}: here a model and its proposals are of one size"
            )
    for namespace in _TABLES:
        if proposal.namespace(namespace) != model.namespace(namespace):
            raise ArchiveError(
                f"{proposal.path}: vocabulary/{namespace}.txt is not that of "
                f"{model.path}: the proposal belongs to another model"
            )


def _reading(proposal: Archive) -> str:
    """Return ``peeking`` or ``nonpeeking``."""
    offset = _section(proposal, "dataset_reader").get("offset")
    return "nonpeeking" if offset else "peeking"


def _named(archive: Archive, section: str, option: str) -> Path:
    """Return a file that the configuration names."""
    path = _section(archive, section).get(option)
    if not (isinstance(path, str) and Path(path).is_file()):
        raise ArchiveError(
            f"{archive.path}: {section}.{option} in config.json is {path!r}, which is "
            "no file here: say where it is (--knowledge-graph, --aliases)"
        )
    return Path(path)


def _section(archive: Archive, name: str) -> dict[str, Any]:
    section = archive.config.get(name)
    return section if isinstance(section, dict) else {}


def _order(archive: Archive) -> list[int]:
    """Return the words' ids in our order: the special ones first."""
    words = archive.namespace("tokens")
    missing = [word for word in SPECIAL_WORDS if word not in words]
    if missing:
        raise ArchiveError(
            f"{archive.path}: vocabulary/tokens.txt lacks {missing[0]}: it is not the "
            "vocabulary of a KGLM"
        )
    special = [words.index(word) for word in SPECIAL_WORDS]
    return special + [i for i in range(len(words)) if i not in special]


def _num_special(archive: Archive) -> int:
    """Count the rows at the start of the entity table that are no entity."""
    names = archive.namespace("entity_ids")
    return next((i for i, n in enumerate(names) if not n.startswith("@@")), len(names))


def _renamed(
    archive: Archive, order: Sequence[int], tied: bool, proposal: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of an archive by their names in ``KGLM``."""
    weights = {
        name: tensor[list(order)] if name in _BY_WORD else tensor
        for name, tensor in archive.weights.items()
    }
    try:
        if proposal is None:
            return rename_weights(weights, {}, tied=tied)
        return rename_weights({}, {proposal: weights}, tied=tied)
    except ValueError as err:
        raise ArchiveError(f"{archive.path}: weights.th: {err}") from err


def _check_shapes(
    model: KGLM,
    found: Mapping[str, Tensor],
    original: Archive,
    proposals: Mapping[str, Archive],
) -> None:
    """Refuse weights that are not those of the configuration."""
    wanted: dict[str, Tensor] = model.state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        part, which, *_ = name.split(".")
        archive = proposals[which] if part == "proposals" else original
        shapes = [
            tuple(table[name].shape) if name in table else "nothing"
            for table in (wanted, found)
        ]
        if shapes[0] != shapes[1]:
            raise ArchiveError(
                f"{archive.path}: config.json asks for {shapes[0]} as our {name}, but "
                f"weights.th has {shapes[1]}: they are of different models"
            )


# -- words and graph ------------------------------------------------------------------


def _words_and_graph(
    archive: Archive, order: Sequence[int], edges: Edges, names: Names
) -> tuple[WordTokenizer, KnowledgeGraph]:
    """Number the words, then those that only aliases have, and build the graph."""
    nodes = archive.namespace("raw_entity_ids")
    kept = {
        node: [form[:MAX_ALIAS_WORDS] for form in names.get(node, ())[:MAX_ALIASES]]
        for node in nodes
    }
    words = archive.namespace("tokens")
    aliases = (word for forms in kept.values() for form in forms for word in form)
    every = dict.fromkeys([*(words[i] for i in order), *aliases])
    vocab = {word: i for i, word in enumerate(every)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=SPECIAL_WORDS[UNKNOWN]))
    tokenizer.normalizer = Replace(Regex(r"\s*\n\s*"), f" {SPECIAL_WORDS[END]} ")
    tokenizer.pre_tokenizer = WhitespaceSplit()
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
    return WordTokenizer(tokenizer, len(words)), graph
