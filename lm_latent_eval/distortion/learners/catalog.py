"""Learners by their directory: causal LMs, and our latent LMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.causal import load_causal_learner
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.scoring.likelihood import TokenIdModel
from lm_latent_eval.scoring.string_scorers import is_latent


def load_learner(path: str | Path, corpus: Corpus, **settings: Any) -> TokenIdModel:
    """Load a model that is to be compared with the language of a corpus.

    Args:
        path: A directory or a hub repository.
        corpus: Sequences of the language: its tokens must be the model's.
        settings: As :func:`load_causal_learner` or :meth:`LatentLearner.load`.

    Raises:
        ValueError: If there is no such model, its tokens are others, or it has no such
            setting.
    """
    if is_latent(path):
        return LatentLearner.load(path, corpus, **settings)
    wrong = sorted(settings.keys() - {"device", "dtype", "batch_size"})
    if wrong:
        raise ValueError(
            f"{path} is a causal LM, whose log-probabilities are exact: it has no "
            f"{', '.join(wrong)}"
        )
    return load_causal_learner(path, corpus, **settings)
