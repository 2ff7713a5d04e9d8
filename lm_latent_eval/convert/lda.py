"""Topic models of gensim, scikit-learn and tomotopy become checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.arguments import one_of
from lm_latent_eval.extras import require
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.models.lda.topic_tables import TopicTables
from lm_latent_eval.models.lda.training import tables_of


def convert(path: Path, directory: Path, *, library: str) -> LDA:
    """Write the checkpoint of another library's model.

    Words are looked up in lower case if the model has no others.

    Args:
        path: The file that the library wrote; of scikit-learn a pickle of a pipeline of
            vectorizer and ``LatentDirichletAllocation``. Files of gensim and of
            scikit-learn can run code: read those that you trust.
        directory: Where the checkpoint goes.
        library: ``gensim``, ``scikit-learn`` or ``tomotopy``.

    Raises:
        ModuleNotFoundError: If the library is not installed.
        ValueError: If the file is not there, or holds no such model.
    """
    read = _READ[one_of("library", library, list(_READ))]
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the file that {library} wrote")
    try:
        tables = read(path)
    except (AttributeError, TypeError, pickle.UnpicklingError, EOFError) as err:
        raise ValueError(f"{path} holds no topic model of {library} ({err})") from err
    return tables.write(directory)


def _of_gensim(path: Path) -> TopicTables:
    require("gensim", extra="topics")
    ldamodel = require("gensim.models.ldamodel", extra="topics")
    model = ldamodel.LdaModel.load(str(path))
    words = [str(model.id2word[i]) for i in range(model.num_terms)]
    # Normalised in float32; the variational parameters are not.
    phi = np.asarray(model.state.get_lambda(), np.float64)
    return TopicTables(words, phi, np.asarray(model.alpha, np.float64), _lower(words))


def _of_scikit_learn(path: Path) -> TopicTables:
    require("sklearn", extra="topics")
    with path.open("rb") as file:
        pipeline = pickle.load(file)
    (_, vectorizer), (_, model) = pipeline.steps
    words = [str(word) for word in vectorizer.get_feature_names_out()]
    return TopicTables(
        words,
        np.asarray(model.components_, np.float64),
        np.asarray(model.doc_topic_prior_, np.float64),
        bool(vectorizer.lowercase),
    )


def _of_tomotopy(path: Path) -> TopicTables:
    tomotopy = require("tomotopy", extra="topics")
    try:
        model: Any = tomotopy.LDAModel.load(str(path))
    except Exception as err:  # the library raises bare exceptions
        raise TypeError(err) from err
    return tables_of(model, lowercase=_lower(list(model.used_vocabs)))


def _lower(words: list[str]) -> bool:
    """Whether no word has a capital."""
    return all(word == word.lower() for word in words)


_READ: dict[str, Callable[[Path], TopicTables]] = {
    "gensim": _of_gensim,
    "scikit-learn": _of_scikit_learn,
    "tomotopy": _of_tomotopy,
}
