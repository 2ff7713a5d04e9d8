"""Training of recurrent language models on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.learning import sizes, train_checkpoint
from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, WordTokenizer
from lm_latent_eval.training.options import LSTMSize, Options
from lm_latent_eval.training.supervised import Part


def train_lstm(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    size: LSTMSize | None = None,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
    already_cut: bool = False,
    options: Options | None = None,
) -> LSTMLanguageModel:
    """Train p and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Folder of the checkpoint. An interrupted run there is resumed.
        size: Size of the model, and the kind of its cells.
        tokenizer: Vocabulary of another model, to compare both; None trains one.
        min_count: Without ``tokenizer``: rarer words are unknown.
        already_cut: The texts' words are separated by white space by another program.
            No spelling is learnt then, so only words are scored.
        options: Options of training.
    """
    options, about = options or Options(), vars(size or LSTMSize())
    words = tokenizer or WordTokenizer.train(
        texts, min_count=min_count, already_cut=already_cut
    )
    items, held_out = (
        [[*words(text).ids, END] for text in part] for part in (texts, dev)
    )
    torch.manual_seed(options.seed)
    model = LSTMLanguageModel(LSTMConfig(**sizes(words, texts), **about))

    def loss(items: Sequence[list[int]]) -> Tensor:
        batch = TokenBatch.collate(items, first=START, device=model.device)
        return -model.log_joint(model.encode(batch), NO_LATENT).sum()

    train_checkpoint(
        model,
        {"p": Part(model, loss)},
        items,
        held_out,
        directory,
        words,
        options,
        size=len,
        about=about,
        spelled=() if already_cut else texts,
    )
    return model
