"""Conversion of topic models of gensim, scikit-learn and tomotopy.

Files of gensim and scikit-learn are pickles, which are read without running anything of
them (``unpickling.py``): neither library is needed. Those of tomotopy are read by the
library itself, and only where they are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.arguments import one_of
from lm_latent_eval.convert.files.arrays import array, read_npy
from lm_latent_eval.convert.files.unpickling import (
    CONTAINERS,
    PickleError,
    StandIn,
    load_pickle,
)
from lm_latent_eval.convert.tomotopy_tables import read_tables
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.models.lda.topic_tables import TopicTables

LIBRARIES = ("gensim", "scikit-learn", "tomotopy")
_TABLES = "write its tables by lm_latent_eval.models.lda.topic_tables.TopicTables"
_STEPS = "a pipeline of a CountVectorizer and a LatentDirichletAllocation, both fitted"


def convert(path: Path, directory: Path, *, library: str, trust: bool = False) -> LDA:
    """Write the checkpoint of another library's model.

    Words are looked up in lower case if the model has no others.

    Args:
        path: The file that the library wrote; of scikit-learn a pickle of a pipeline of
            vectorizer and ``LatentDirichletAllocation``. Of gensim there are others
            beside it, which begin with its name.
        directory: Where the checkpoint goes.
        library: ``gensim``, ``scikit-learn`` or ``tomotopy``.
        trust: Whether the library's own reader, in C++, may read the file: tomotopy
            has no other.

    Raises:
        ModuleNotFoundError: If tomotopy is not installed, to read its file.
        ValueError: If the file is not there, is not trusted though it has to be, or
            holds no such model.
    """
    one_of("library", library, LIBRARIES)
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the file that {library} wrote")
    if library == "tomotopy" and not trust:
        raise ValueError(
            f"{path} is not read: the reader of tomotopy is C++, which damaged files "
            f"crash or worse. If you trust the file, give --trust, or {_TABLES}"
        )
    try:
        if library == "gensim":
            tables = _of_gensim(path)
        elif library == "scikit-learn":
            tables = _of_scikit_learn(path)
        else:
            tables = read_tables(path)
            tables = replace(tables, lowercase=_lower(tables.words))
    except (KeyError, TypeError, PickleError) as err:
        raise ValueError(f"{path} holds no topic model of {library} ({err})") from err
    return tables.write(directory)


def _load(path: Path, package: str) -> Any:
    names = {**CONTAINERS, "_codecs.encode": StandIn}
    return load_pickle(path, names, packages=("numpy", package), instead=_TABLES)


def _record(found: Any, what: str) -> dict[Any, Any]:
    if not isinstance(found, StandIn):
        raise TypeError(f"expected {what}")
    return found.attributes


# -- gensim -------------------------------------------------------------------------


def _of_gensim(path: Path) -> TopicTables:
    model = _record(_load(path, "gensim"), "an LdaModel")
    state_file = path.with_name(f"{path.name}.state")
    state = _record(_load(state_file, "gensim"), "the state of an LdaModel")
    eta, counts = (_attribute(state_file, state, name) for name in ("eta", "sstats"))
    words = _words_of_gensim(path, model)
    # Normalised in float32; the variational parameters are not.
    phi = (eta + counts).astype(np.float64)
    alpha = _attribute(path, model, "alpha").astype(np.float64)
    return TopicTables(words, phi, alpha, _lower(words))


def _attribute(path: Path, state: Mapping[str, Any], name: str) -> NDArray[Any]:
    """Return numbers of an object, which may have a file to themselves."""
    if name in (state.get("__numpys") or ()):
        return read_npy(path.with_name(f"{path.name}.{name}.npy"))
    return array(state[name])


def _words_of_gensim(path: Path, model: Mapping[str, Any]) -> list[str]:
    own = path.with_name(f"{path.name}.id2word")
    found = _load(own, "gensim") if own.exists() else model["id2word"]
    if isinstance(found, StandIn):
        ids = found.attributes["token2id"]
        found = {place: word for word, place in ids.items()}
    return _in_order(found)


def _in_order(words: Any) -> list[str]:
    """Return the words of a table from 0, 1, 2, ... to words."""
    if not isinstance(words, dict) or {*words} != {*range(len(words))}:
        raise TypeError("the ids of its words are not 0, 1, 2, ...")
    ordered = [words[place] for place in range(len(words))]
    if not all(isinstance(word, str) for word in ordered):
        raise TypeError("not all of its words are strings")
    return ordered


def _lower(words: Any) -> bool:
    """Whether no word has a capital."""
    return all(word == word.lower() for word in words)


# -- scikit-learn -------------------------------------------------------------------


def _of_scikit_learn(path: Path) -> TopicTables:
    steps = _record(_load(path, "sklearn"), _STEPS).get("steps")
    match steps:
        case [(str(), StandIn() as words), (str(), StandIn() as topics)]:
            vectorizer, model = words.attributes, topics.attributes
        case _:
            raise TypeError(f"expected {_STEPS}")
    known = vectorizer.get("vocabulary_")
    if not isinstance(known, dict) or type(vectorizer.get("lowercase")) is not bool:
        raise TypeError(f"expected {_STEPS}")
    return TopicTables(
        _in_order({int(array(place)): word for word, place in known.items()}),
        array(model["components_"]).astype(np.float64),
        array(model["doc_topic_prior_"]).astype(np.float64),
        vectorizer["lowercase"],
    )
