"""Conversion of LRLM and NKLM checkpoints from the authors' program.

Their file is a pickled dictionary of tensors, without the other files of the program:
the vectors of entities, relations and aliases, the vocabulary and the facts of each
text. All are given by name; nothing of them is run (``pickles.py``).

In our layout words 0 and 1 change places (unknown and padding), relations with a number
below 0 follow the others, and the vector of unknown objects follows those of the known
ones.
Source: the code of Hayashi et al. (2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.convert.originals import (
    OriginalError,
    refusing,
    renamed,
    with_weights,
)
from lm_latent_eval.convert.pickles import load_pickle, part, read_torch, tensors
from lm_latent_eval.files import regular
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.text.files import read_json
from lm_latent_eval.text.words import SPECIAL_WORDS, UNKNOWN, WordTokenizer
from lm_latent_eval.values import checked, strings

NAMES = (
    (r"^word_embed\.(embed_layers\.0\.)?weight$", "words.embedding.weight"),
    (r"^word_predictor\.(layer2|out_layers\.0)\.", "words."),
    (r"^word_predictor\.layer1\.", "words.inner."),
    (r"^word_predictor\.out_projs\.", "words.projections."),
    (r"^word_predictor\.cluster_", "words.cluster_"),
    (r"^(hid_to_fact|fact_key_mlp)\.layer1\.", "to_fact.0."),
    (r"^(hid_to_fact|fact_key_mlp)\.layer2\.", "to_fact.2."),
    (r"^hid_to_fact\.", "to_fact."),
    (r"^hid_to_alias\.", "to_alias."),
    (r"^selector\.", "selector."),
    (r"^copy_predictor\.layer1\.", "copy.0."),
    (r"^copy_predictor\.layer2\.", "copy.2."),
    (r"^pos_predictor\.layer1\.", "to_position.0."),
    (r"^pos_predictor\.layer2\.", "to_position.2."),
    (r"^position_embed\.", "position."),
    (r"^naf_vec$", "no_fact"),
    (r"^rnn\.lstm\.(\w+)_l(\d+)$", r"trunk.layers.\2.\1_l0"),
)
"""Patterns of the original's names, and ours."""
FACTS = (
    r"special_rel_vecs\.\d+|relation_embed\.weight"
    r"|(entity|unk_entity|relation|alias)_vec"
)
"""Tensors of the tables of facts."""
WORD_ROWS = {"words.embedding.weight", "words.weight", "words.bias"}
"""Our tensors with one row a word."""


def relation_number(rel_typ: int, num_relations: int, num_special: int) -> int:
    """Row of a relation; numbers from -2 down count from the last one on.

    Raises:
        ValueError: If there is none.
    """
    if 0 <= rel_typ < num_relations:
        return rel_typ
    if -num_special - 1 <= rel_typ < -1:
        return num_relations + num_special + rel_typ + 1
    raise ValueError(
        f"relation {rel_typ}: there are 0 to {num_relations - 1} and -2 to "
        f"{-num_special - 1}, so it belongs to other vectors"
    )


def object_number(obj_id: int, num_objects: int) -> int:
    """Row of an object; the unknown one, -1, is after the last.

    Raises:
        ValueError: If there is none.
    """
    if -1 <= obj_id < num_objects:
        return num_objects if obj_id < 0 else obj_id
    raise ValueError(
        f"object {obj_id}: there are -1 to {num_objects - 1}, so it belongs to other "
        "vectors"
    )


def weights_of(original: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Rename an original's tensors and its tables of facts.

    Args:
        original: Name -> tensor.
        tied: Whether the output layer shares the embeddings (its copy is left out).

    Raises:
        ValueError: If a tensor is of neither model.
    """
    ours = renamed(original, NAMES, "LRLM or NKLM", [FACTS])
    if tied:
        ours.pop("words.weight", None)
    for name in WORD_ROWS & ours.keys():  # padding before unknown
        ours[name] = torch.cat([ours[name][[1, 0]], ours[name][2:]])
    return ours | _fact_tables(original)


def _fact_tables(original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    special = [
        original[f"special_rel_vecs.{n}"][None]
        for n in range(sum(name.startswith("special_rel_vecs.") for name in original))
    ]
    relations = original.get("relation_embed.weight", original["relation_vec"])
    return {
        "facts.relation.weight": torch.cat([relations, *special]),
        "facts.object.weight": torch.cat(
            [original["entity_vec"], original["unk_entity_vec"][None]]
        ),
        "facts.alias.weight": original["alias_vec"],
    }


def config_of(
    options: Mapping[str, Any], original: Mapping[str, Tensor], vocab_size: int
) -> dict[str, Any]:
    """Configuration values common to both models.

    Args:
        options: Options of the original's command, by name.
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
    config = config_of(options, original, vocab_size)
    config["fact_hidden"] = inner_size(options) if options["use_rel_mlp"] else 0
    if "rnn.r_w_bias" in original:
        raise ValueError("a Transformer-XL: only LSTMs are converted")
    return config


def inner_size(options: Mapping[str, Any]) -> int:
    size: int = options["fact_key_mlp_hidden_dim"]
    return 4 * int(options["kb_embed_dim"]) if size == -1 else size


def nklm_config_of(
    options: Mapping[str, Any], original: Mapping[str, Tensor], vocab_size: int
) -> dict[str, Any]:
    def size(name: str, default: int) -> int:
        given: int = options[name]
        return default if given == -1 else given

    return {
        **config_of(options, original, vocab_size),
        "fact_hidden": inner_size(options),
        "num_positions": options["pos_embed_count"],
        "position_dim": options["pos_embed_dim"],
        "copy_hidden": size("copy_mlp_hidden_dim", options["hidden_size"]),
        "position_hidden": size("pos_mlp_hidden_dim", 2 * options["pos_embed_dim"]),
        "only_possible": False,
    }


MARKS = ("<unk>", "<pad>", "<s>", "</s>")
"""First words of the original's vocabularies."""


NO_WORD = "a word of no text"
"""Replacement of ``<unk>`` in an alias, where it would name any unknown word at no
cost. It has spaces, so no text contains it."""


@dataclass(frozen=True)
class Files:
    """Files of the original program."""

    model: Path
    """File of ``torch.save``: a dictionary with ``model``."""
    options: Path
    """JSON file of the options of the training command, by name."""
    vocabulary: Path
    """JSON file of the words in the order of their ids."""
    texts: Sequence[Path]
    """Pickles of lists of (sentence, topic, [(relation, object, aliases), ...])."""
    entities: Path
    relations: Path
    aliases: Path
    """JSON file of alias strings in the order of their vectors."""
    alias_vectors: Path
    """File of those vectors, a tensor written by ``torch.save``."""


def convert(files: Files, output: Path) -> LRLM | NKLM:
    """Write a checkpoint directory of an original LRLM or NKLM.

    Raises:
        OriginalError: If a file is damaged, unsafe, or something else.
    """
    weights = {
        **_weights(files.model),
        "entity_vec": _tensor(files.entities),
        "relation_vec": _tensor(files.relations),
        "alias_vec": _tensor(files.alias_vectors),
    }
    words, aliases = _words(files.vocabulary), _list(files.aliases)
    if len(aliases) != len(weights["alias_vec"]):
        raise OriginalError(
            f"{files.aliases} has {len(aliases)} aliases, {files.alias_vectors} "
            f"{len(weights['alias_vec'])} vectors: they are of different models"
        )
    spelled = {word for alias in aliases for word in alias.split()}
    beyond = sorted(spelled - {*words})
    beyond += [NO_WORD] if spelled & {*SPECIAL_WORDS} else []
    tokenizer = WordTokenizer.at_white_space([*words, *beyond], len(words))
    try:
        topics = _topics(files.texts, aliases, tokenizer, weights)
        model = _model(files, weights, tokenizer, topics)
    except OriginalError:
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as err:
        raise OriginalError(
            f"{files.model} and its files are no original LRLM or NKLM: {err!r:.200}"
        ) from err
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def _model(
    files: Files,
    weights: Mapping[str, Tensor],
    tokenizer: WordTokenizer,
    topics: Topics,
) -> LRLM | NKLM:
    copies = "naf_vec" in weights
    read = nklm_config_of if copies else lrlm_config_of
    fields = read(read_json(files.options), weights, tokenizer.vocab_size)
    fields |= {"num_words": tokenizer.num_words, **topics.sizes()}
    ours = weights_of(weights, tied=fields["tie_weights"])
    kind = ours["no_fact" if copies else "selector.weight"].dtype
    floats = {n: t.to(kind) for n, t in ours.items() if t.is_floating_point()}
    model: LRLM | NKLM = with_weights(
        lambda: NKLM(NKLMConfig(**fields)) if copies else LRLM(LRLMConfig(**fields)),
        ours | floats,
        lambda _: files.model,
    )
    model.topics = topics
    return model


def _topics(
    paths: Sequence[Path],
    aliases: Sequence[str],
    tokenizer: WordTokenizer,
    weights: Mapping[str, Tensor],
) -> Topics:
    """Read the topics of texts; different topics of one name are numbered."""
    row = {alias: n for n, alias in enumerate(aliases)}
    special = sum(name.startswith("special_rel_vecs.") for name in weights)
    topics: dict[str, list[Fact]] = {}
    counts: dict[str, int] = {}
    names: dict[tuple[str, tuple[Fact, ...]], str] = {}
    repeats: dict[str, int] = {}
    for path in paths:
        for index, (topic, relations) in enumerate(_texts(path), 1):
            try:
                facts = tuple(
                    Fact(
                        relation_number(
                            relation, len(weights["relation_vec"]), special
                        ),
                        object_number(entity, len(weights["entity_vec"])),
                        tuple(row[alias] for alias in names),
                    )
                    for relation, entity, names in relations
                )
            except ValueError as err:
                raise ValueError(f"{path}, text {index}: {err}") from err
            if (topic, facts) not in names:
                name = topic
                while name in topics:
                    repeats[topic] = repeats.get(topic, 1) + 1
                    name = f"{topic} ({repeats[topic]})"
                names[topic, facts], topics[name] = name, [*facts]
            name = names[topic, facts]
            counts[name] = counts.get(name, 0) + 1
    never = tokenizer.num_words - 1
    ids = [
        [never if word == UNKNOWN else word for word in tokenizer(alias).ids]
        for alias in aliases
    ]
    return Topics.build(topics, ids, counts=counts)


def _texts(path: Path) -> Iterator[tuple[str, list[tuple[int, int, list[str]]]]]:
    """Yield topic and relations of each text.

    Raises:
        TypeError: If the file holds something else.
    """
    for index, text in enumerate(_sequence(load_pickle(path), "the file"), 1):
        what = f"{path}, text {index}"
        _, topic, relations, *_ = _sequence(text, what)
        if not isinstance(topic, str):
            topic = str(checked(topic, int, what))
        triples = []
        for each in _sequence(relations, what):
            relation, entity, names = _sequence(each, what)
            aliases = strings([*_sequence(names, what)], what)
            triples.append(
                (checked(relation, int, what), checked(entity, int, what), aliases)
            )
        yield topic, triples


def _sequence(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"{what}: expected (sentence, topic, [(relation, object, ...)])"
        )
    return value


def _weights(path: Path) -> dict[str, Tensor]:
    with refusing(path):
        return tensors(part(read_torch(regular(path).read_bytes()), "model"))


def _tensor(path: Path) -> Tensor:
    with refusing(path):
        tensor = read_torch(regular(path).read_bytes())
        return tensors({path.stem: tensor})[path.stem]


def _words(path: Path) -> list[str]:
    """Read the vocabulary, and put padding before unknown."""
    words = _list(path)
    if tuple(words[: len(MARKS)]) != MARKS:
        raise OriginalError(f"{path}: its first words are not {', '.join(MARKS)}")
    if twice := sorted(word for word, n in Counter(words).items() if n > 1):
        raise OriginalError(f"{path} lists the word {twice[0]!r} twice")
    return [*SPECIAL_WORDS, *words[len(MARKS) :]]


def _list(path: Path) -> list[str]:
    try:
        return strings(checked(read_json(path), list, "the file"), "the file")
    except (ValueError, TypeError) as err:
        raise OriginalError(f"{path} is no JSON list of strings: {err}") from err
