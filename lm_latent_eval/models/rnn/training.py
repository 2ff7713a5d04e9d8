"""Training of a simple recurrent language model on text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from lm_latent_eval.models.lstm.training import count_unknown_types, fit
from lm_latent_eval.models.rnn.modeling import (
    RNNConfig,
    RNNLanguageModel,
    class_starts,
)
from lm_latent_eval.text.words import END, WordTokenizer
from lm_latent_eval.training.options import Options, RNNSize


def train(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
    already_cut: bool = False,
    size: RNNSize | None = None,
    options: Options | None = None,
) -> RNNLanguageModel:
    """Train p and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        tokenizer: A vocabulary to take over, so that two models compare.
        min_count: Without one: rarer words are unknown.
        already_cut: The texts' words stand between white space, cut by another program.
            Their strings are lost, so no spelling is learnt: only words are scored.
        size: How large the model is.
        options: How to train.
    """
    size, options = size or RNNSize(), options or Options()
    if tokenizer is None:
        tokenizer = WordTokenizer.train(
            texts, min_count=min_count, already_cut=already_cut
        )
    counts = Counter(i for text in texts for i in [*tokenizer(text).ids, END])
    torch.manual_seed(options.seed)
    config = RNNConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_unknown_types=count_unknown_types(texts, tokenizer),
        class_starts=class_starts(
            [counts[i] for i in range(tokenizer.vocab_size)], size.num_classes
        ),
        embedding_dim=size.embedding_dim,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        dropout=size.dropout,
    )
    model = RNNLanguageModel(config)
    fit(
        model,
        texts,
        dev,
        directory,
        tokenizer,
        options,
        size=size,
        spelled=not already_cut,
    )
    return model
