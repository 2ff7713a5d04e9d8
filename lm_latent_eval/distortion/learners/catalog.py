"""Learners by their directory: causal LMs, and our latent LMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.networks.network import check_positions
from lm_latent_eval.scoring.sequence_scorer import TokenIdModel
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


def load_causal_learner(
    path: str | Path,
    corpus: Corpus,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    batch_size: int = 64,
) -> CausalLanguage:
    """Load a model for the sequences of a corpus, whose begin and end it takes.

    Args:
        path: A directory, or a repository of the hub.
        corpus: What is to be scored.
        device: Where to compute; None is a GPU if there is one.
        dtype: Of the model.
        batch_size: Sequences computed together.

    Raises:
        ValueError: If there is no such model, it has another vocabulary than the
            corpus, or too few positions for it.
    """
    vocabulary = TokenIds.of(corpus)
    language = CausalLanguage.load(
        path,
        begin_id=vocabulary.begin_id,
        end_id=vocabulary.end_id,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
    )
    vocabulary.check_tokens(str(path), language.vocab_size, language.tokenizer)
    check_positions(language.model, str(path), corpus.max_length)
    return language
