"""Conversion of LRLM and NKLM checkpoints from the authors' program.

Their file is a pickled dictionary of tensors, without what the program read beside it:
the vectors of entities, relations and aliases, the vocabulary and the facts of each
text. All are given by name; nothing of them is run (``unpickling.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.convert.files.torch_files import Stored, read_torch
from lm_latent_eval.convert.files.unpickling import PickleError, load_pickle
from lm_latent_eval.convert.originals import lrlm, nklm
from lm_latent_eval.convert.originals.refused import OriginalError
from lm_latent_eval.convert.renaming import misfits
from lm_latent_eval.file_names import regular
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.strict_json import checked, strings
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer

MARKS = ("<unk>", "<pad>", "<s>", "</s>")
"""The first words of the original's vocabularies."""


PADDING, LEAST = 100, 1 << 24
"""How many times the words of all aliases a table of them may hold, and how many words
that of few aliases may."""


@dataclass(frozen=True)
class Files:
    """What the original program read and wrote."""

    model: Path
    """What ``torch.save`` wrote: a dictionary with ``model``."""
    options: Path
    """JSON: the options of the training command, by name."""
    vocabulary: Path
    """JSON: the words in the order of their ids."""
    texts: Sequence[Path]
    """Pickles: lists of (sentence, topic, [(relation, object, aliases), ...])."""
    entities: Path
    """``entity_vec.pt``."""
    relations: Path
    """``relation_vec.pt``."""
    aliases: Path
    """JSON: alias strings in the order of their vectors."""
    alias_vectors: Path
    """Those vectors, as ``torch.save`` writes a tensor."""


def convert(files: Files, output: Path) -> LRLM | NKLM:
    """Write a checkpoint directory of an original model, whichever of the two it is.

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
    beyond = sorted({w for a in aliases for w in a.split()} - {*words})
    tokenizer = WordTokenizer.at_white_space([*words, *beyond], len(words))
    try:
        topics = _topics(files.texts, aliases, tokenizer, weights)
        model = _model(strict_json.read(files.options), weights, tokenizer, topics)
    except (KeyError, RuntimeError, TypeError, ValueError) as err:
        raise OriginalError(
            f"{files.model} and its files are no original LRLM or NKLM: {err!r:.200}"
        ) from err
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def _model(
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: WordTokenizer,
    topics: Topics,
) -> LRLM | NKLM:
    copies = "naf_vec" in weights
    read = nklm.nklm_config_of if copies else lrlm.lrlm_config_of
    fields = read(options, weights, tokenizer.vocab_size)
    fields |= {"num_words": tokenizer.num_words, **topics.sizes()}
    renamed = (nklm if copies else lrlm).weights_of(weights, tied=fields["tie_weights"])
    with torch.device("meta"):  # sizes that no weights have must take no memory
        model: LRLM | NKLM = (
            NKLM(NKLMConfig(**fields)) if copies else LRLM(LRLMConfig(**fields))
        )
    for name, wanted, found in misfits(model.state_dict(), renamed):
        raise ValueError(f"{found} as our {name}, expected {wanted}")
    kind = renamed["selector.weight" if not copies else "no_fact"].dtype
    own = {name: tensor.to(kind) for name, tensor in renamed.items()}
    model.load_state_dict(own, assign=True)
    model.topics = topics
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _topics(
    paths: Sequence[Path],
    aliases: Sequence[str],
    tokenizer: WordTokenizer,
    weights: Mapping[str, Tensor],
) -> Topics:
    """Read what texts are about; topics of one name that differ are numbered."""
    row = {alias: n for n, alias in enumerate(aliases)}
    special = sum(name.startswith("special_rel_vecs.") for name in weights)
    found: dict[str, list[Fact]] = {}
    counts: dict[str, int] = {}
    names: dict[tuple[str, tuple[Fact, ...]], str] = {}
    numbers: dict[str, int] = {}
    for path in paths:
        for topic, relations in _texts(path):
            facts = tuple(
                Fact(
                    lrlm.relation_number(
                        relation, len(weights["relation_vec"]), special
                    ),
                    lrlm.object_number(entity, len(weights["entity_vec"])),
                    tuple(row[alias] for alias in names),
                )
                for relation, entity, names in relations
            )
            if (topic, facts) not in names:
                name = topic
                while name in found:
                    numbers[topic] = numbers.get(topic, 1) + 1
                    name = f"{topic} ({numbers[topic]})"
                names[topic, facts], found[name] = name, [*facts]
            name = names[topic, facts]
            counts[name] = counts.get(name, 0) + 1
    ids = [tokenizer(alias).ids for alias in aliases]
    longest, total = max(map(len, ids), default=0), sum(map(len, ids))
    if longest * len(ids) > max(PADDING * total, LEAST):  # they become a table
        raise ValueError(f"an alias has {longest:,} words: no name is as long")
    return Topics.build(found, ids, counts=counts)


def _texts(path: Path) -> Iterator[tuple[str, list[tuple[int, int, list[str]]]]]:
    """Yield topic and relations of each text.

    Raises:
        TypeError: If the file holds something else.
    """
    for number, text in enumerate(_sequence(load_pickle(path), "the file"), 1):
        what = f"{path}, text {number}"
        _, topic, relations, *_ = _sequence(text, what)
        if not isinstance(topic, str):
            topic = str(checked(topic, int, what))
        found = []
        for each in _sequence(relations, what):
            relation, entity, names = _sequence(each, what)
            aliases = strings([*_sequence(names, what)], what)
            found.append(
                (checked(relation, int, what), checked(entity, int, what), aliases)
            )
        yield topic, found


def _sequence(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"{what}: expected (sentence, topic, [(relation, object, ...)])"
        )
    return value


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        saved = read_torch(regular(path).read_bytes())
        content = saved.content if isinstance(saved.content, dict) else {}
        model = content.get("model")
        if not isinstance(model, dict) or not all(
            isinstance(tensor, Stored) for tensor in model.values()
        ):
            raise OriginalError(
                f"{path} is not what the original program saves: a dictionary with "
                "'model', whose values are tensors"
            )
        return saved.tensors(model)
    except PickleError as err:
        raise OriginalError(f"{path} is refused: {err}; nothing in it was run") from err


def _tensor(path: Path) -> Tensor:
    try:
        saved = read_torch(regular(path).read_bytes())
        if not isinstance(saved.content, Stored):
            raise OriginalError(f"{path} is not one tensor")
        return saved.tensors({"": saved.content})[""]
    except PickleError as err:
        raise OriginalError(f"{path} is refused: {err}; nothing in it was run") from err


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
        return strings(checked(strict_json.read(path), list, "the file"), "the file")
    except (ValueError, TypeError) as err:
        raise OriginalError(f"{path} is no JSON list of strings: {err}") from err
