"""Conversion of topic models of gensim, scikit-learn and tomotopy.

Files of gensim and scikit-learn are pickles and NumPy arrays, which are read without
running anything of them (``unpickling.py``): neither library is needed. Those of
tomotopy are read by the library itself, and only where they are trusted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.convert.originals import in_order
from lm_latent_eval.convert.tomotopy_tables import read_tables
from lm_latent_eval.convert.unpickling import (
    CONTAINERS,
    PickleError,
    StandIn,
    load_pickle,
)
from lm_latent_eval.files import regular
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.models.lda.training import TopicTables
from lm_latent_eval.options import one_of

_NUMBERS = re.compile(r"b1|f[248]|[iu][1248]")
"""Types that are numbers; others, such as objects, are refused."""
_AXES = 2


def array(found: Any) -> NDArray[Any]:
    """Return a NumPy array of a pickle; a scalar becomes an array without axes.

    Raises:
        PickleError: If it is something else, or its numbers are missing.
    """
    if isinstance(found, float | int):
        return np.asarray(found)
    try:
        numbers, kind, shape, order = _parts(found)
        size = tuple(shape)
        if len(size) > _AXES or not all(type(n) is int and n >= 0 for n in size):
            raise PickleError("an array has no shape")
        flat = np.frombuffer(_bytes(numbers), _dtype(kind))
        if len(flat) != math.prod(size):
            raise PickleError("numbers of an array are missing: it is damaged")
        return flat.reshape(size, order="F" if order == "F" else "C")
    except (AttributeError, TypeError, ValueError) as err:
        if isinstance(err, PickleError):
            raise
        raise PickleError(f"an array is damaged ({type(err).__name__})") from err


def _parts(found: StandIn) -> tuple[Any, Any, Any, str]:
    """Return bytes, type, shape and order."""
    match found.name.rpartition(".")[2], found.arguments, found.state:
        case "_reconstruct", _, (_, shape, kind, fortran, numbers):
            return numbers, kind, shape, "F" if fortran is True else "C"
        case "_frombuffer", (numbers, kind, shape, order), _:
            return numbers, kind, shape, order
        case "scalar", (kind, numbers), _:
            return numbers, kind, (), "C"
    raise PickleError("it has something else where an array of numbers belongs")


def _bytes(found: Any) -> bytes:
    """Return bytes, which protocols below 3 write as a string of Latin letters."""
    if isinstance(found, StandIn) and found.name == "_codecs.encode":
        return str(found.arguments[0]).encode("latin-1")
    if not isinstance(found, bytes):
        raise PickleError("an array has no numbers")
    return found


def _dtype(found: StandIn) -> np.dtype[Any]:
    code, order = found.arguments[0], found.state[1]
    if not _NUMBERS.fullmatch(code) or order not in ("<", ">", "|", "="):
        raise PickleError("an array is of something else than numbers")
    return np.dtype(f"{order}{code}")


def read_npy(path: Path) -> NDArray[Any]:
    """Read a ``.npy`` file of numbers, no more than it has.

    Raises:
        PickleError: If it is something else, or damaged.
    """
    try:
        found = np.lib.format.open_memmap(regular(path), mode="r")
    except Exception as err:  # a damaged header can raise nearly anything
        raise PickleError(f"{path} is no readable array ({err!r:.200})") from err
    if not _NUMBERS.fullmatch(found.dtype.str[1:]):
        raise PickleError(f"{path} is an array of something else than numbers")
    return np.asarray(found)


LIBRARIES = ("gensim", "scikit-learn", "tomotopy")
_TABLES = "write its tables by lm_latent_eval.models.lda.training.TopicTables"
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
    """Return an object's numbers, which may be in a file of their own."""
    if name in (state.get("__numpys") or ()):
        return read_npy(path.with_name(f"{path.name}.{name}.npy"))
    return array(state[name])


def _words_of_gensim(path: Path, model: Mapping[str, Any]) -> list[str]:
    own = path.with_name(f"{path.name}.id2word")
    found = _load(own, "gensim") if own.exists() else model["id2word"]
    if isinstance(found, StandIn):
        ids = found.attributes["token2id"]
        found = {place: word for word, place in ids.items()}
    return in_order(found)


def _lower(words: Any) -> bool:
    """Whether no word has a capital."""
    return all(word == word.lower() for word in words)


_OF_WORDS = {
    "analyzer": "word",
    "ngram_range": (1, 1),
    "binary": False,
    "strip_accents": None,
    "preprocessor": None,
    "tokenizer": None,
}
"""Settings of a ``CountVectorizer`` that counts words."""

# -- scikit-learn -------------------------------------------------------------------


def _of_scikit_learn(path: Path) -> TopicTables:
    steps = _record(_load(path, "sklearn"), _STEPS).get("steps")
    match steps:
        case [(str(), StandIn() as words), (str(), StandIn() as topics)]:
            vectorizer, model = words.attributes, topics.attributes
        case _:
            raise TypeError(f"expected {_STEPS}")
    if (kind := words.name.rpartition(".")[2]) != "CountVectorizer":
        raise TypeError(f"a {kind} counts no words; expected {_STEPS}")
    for name, value in _OF_WORDS.items():
        if (given := vectorizer.get(name, value)) != value:
            raise TypeError(
                f"{name}={given!r:.50}: a text's counts would be others than those of "
                f"its words, which takes {name}={value!r}"
            )
    known = vectorizer.get("vocabulary_")
    if not isinstance(known, dict) or type(vectorizer.get("lowercase")) is not bool:
        raise TypeError(f"expected {_STEPS}")
    return TopicTables(
        in_order({int(array(place)): word for word, place in known.items()}),
        array(model["components_"]).astype(np.float64),
        array(model["doc_topic_prior_"]).astype(np.float64),
        vectorizer["lowercase"],
    )
