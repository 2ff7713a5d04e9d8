"""Training of topic models, by tomotopy's collapsed Gibbs sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.extras import require
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.models.lda.topic_tables import TopicTables
from lm_latent_eval.models.lda.words import lowered
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.training.options import LDAFit


def train_lda(
    texts: Sequence[str],
    directory: Path,
    *,
    min_count: int = 2,
    lowercase: bool = False,
    fit: LDAFit | None = None,
) -> LDA:
    """Fit topics and write the checkpoint.

    Args:
        texts: Training text, a document each.
        directory: Where the checkpoint goes.
        min_count: Rarer words are left out.
        lowercase: Write every word in lower case.
        fit: How many topics, and how they are found.

    Raises:
        ModuleNotFoundError: If tomotopy is not installed.
        ValueError: If no word is left.
    """
    tomotopy, fit = require("tomotopy", extra="topics"), fit or LDAFit()
    texts = [lowered(text) if lowercase else text for text in texts]
    tokenizer = WordTokenizer.train(texts, min_count=min_count)
    known = set(tokenizer.vocabulary)
    if not known:
        raise ValueError(
            f"no word occurs {min_count} times: give more text, or lower min_count"
        )
    model = tomotopy.LDAModel(
        k=fit.num_topics, alpha=fit.alpha, eta=fit.eta, seed=fit.seed
    )
    for text in texts:
        if words := [word for word in tokenizer.cut(text) if word in known]:
            model.add_doc(words)
    # On one core the same seed gives the same topics.
    model.train(fit.iterations, workers=1)
    return tables_of(model, lowercase=lowercase).write(directory)


def tables_of(model: Any, *, lowercase: bool) -> TopicTables:
    """Return the topics of a tomotopy ``LDAModel``."""
    return TopicTables(
        words=list(model.used_vocabs),
        phi=np.stack(
            [
                np.asarray(model.get_topic_word_dist(k), np.float64)
                for k in range(model.k)
            ]
        ),
        alpha=np.asarray(model.alpha, np.float64),
        lowercase=lowercase,
    )
