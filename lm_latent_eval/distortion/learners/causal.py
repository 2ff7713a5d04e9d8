"""Hugging Face causal language models as learners: languages, at temperature 1."""

from __future__ import annotations

from pathlib import Path

import torch

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.networks.network import check_positions


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
