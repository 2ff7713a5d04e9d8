"""Training of recurrent language models, an LSTM's first of all, on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.lstm.modeling import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.models.recurrent_lm import RecurrentLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, WordTokenizer
from lm_latent_eval.training import orthography
from lm_latent_eval.training.options import LSTMSize, Options, RNNSize
from lm_latent_eval.training.supervised import Part, Trainer, only_trainer


def train(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
    already_cut: bool = False,
    size: LSTMSize | None = None,
    options: Options | None = None,
) -> LSTMLanguageModel:
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
    size, options = size or LSTMSize(), options or Options()
    if tokenizer is None:
        tokenizer = WordTokenizer.train(
            texts, min_count=min_count, already_cut=already_cut
        )
    torch.manual_seed(options.seed)
    config = LSTMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_unknown_types=count_unknown_types(texts, tokenizer),
        **vars(size),
    )
    model = LSTMLanguageModel(config)
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


def fit(
    model: RecurrentLM,
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    tokenizer: WordTokenizer,
    options: Options,
    *,
    size: LSTMSize | RNNSize,
    spelled: bool,
) -> None:
    """Train a new model and write the checkpoint, with how its texts are spelled."""

    def loss(items: Sequence[list[int]]) -> Tensor:
        batch = TokenBatch.collate(items, first=START)
        return -model.log_joint(model.encode(batch), NO_LATENT).sum()

    with only_trainer(directory):
        trainer = Trainer(
            {"p": Part(model, loss)},
            size=len,
            options=options,
            directory=directory,
            about={"model": model.config.model_type, **vars(size)},
        )
        trainer.run(
            [[*tokenizer(text).ids, END] for text in texts],
            [[*tokenizer(text).ids, END] for text in dev],
        )
        model.eval()  # type: ignore[no-untyped-call]
        writing = orthography.train(texts, tokenizer) if spelled else None
        save(model, tokenizer, directory, model.state_dict(), writing)


def count_unknown_types(texts: Sequence[str], tokenizer: WordTokenizer) -> int:
    """Count the distinct words of texts that a model cannot utter."""
    return tokenizer.count_unknown_types(
        word for text in texts for word in tokenizer.cut(text)
    )
