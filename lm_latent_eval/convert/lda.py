"""Conversion of topic models: tables that their owner wrote by ``numpy.savez``.

Files of gensim, scikit-learn and tomotopy are pickles, which run code when they are
read, so their owner exports them: ``docs/lda.md`` has a line for each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lm_latent_eval.convert.originals import OriginalError
from lm_latent_eval.files import one_line, regular
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.models.lda.training import TopicTables


def convert(path: Path, directory: Path) -> LDA:
    """Write the checkpoint of a topic model.

    Words are looked up in lower case if all of the model's are.

    Args:
        path: File of ``numpy.savez``: ``words`` (V,), ``phi`` (N, V), p(word | topic)
            up to a factor a topic, and ``alpha``, (N,) or one for all.
        directory: Folder of the checkpoint.

    Raises:
        OriginalError: If the file is damaged, or its tables describe no topic model.
        OSError: If the file cannot be read.
    """
    try:
        with regular(path).open("rb") as file:  # NumPy leaves damaged ones open
            tables = np.load(file, allow_pickle=False)
            words, phi, alpha = (tables[name] for name in ("words", "phi", "alpha"))
        if words.ndim != 1 or words.dtype.kind != "U":
            raise ValueError("its words are no list of strings")
        if not {phi.dtype.kind, alpha.dtype.kind} <= {*"fiu"}:
            raise ValueError("its tables are not of numbers")
        lowercase = all(word == word.lower() for word in words.tolist())
        return TopicTables(words.tolist(), phi, alpha, lowercase).write(directory)
    except OSError:
        raise
    except Exception as err:  # a damaged archive can raise nearly anything
        raise OriginalError(
            f"{path} holds no tables of a topic model ({one_line(err)}): write them by "
            "numpy.savez, as docs/lda.md shows"
        ) from err
