"""Training of recurrent language models on text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.learning import sizes, train_checkpoint
from lm_latent_eval.models.recurrent_lm import (
    LSTMConfig,
    LSTMLanguageModel,
    RecurrentLM,
    RNNConfig,
    RNNLanguageModel,
    class_starts,
)
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, WordTokenizer
from lm_latent_eval.training.options import LSTMSize, Options, RNNSize
from lm_latent_eval.training.supervised import Part

ModelT = TypeVar("ModelT", bound=RecurrentLM)


class How(TypedDict, total=False):
    """Options of the training of any recurrent language model."""

    tokenizer: WordTokenizer | None
    """A vocabulary to take over, so that two models compare."""
    min_count: int
    """Without one: rarer words are unknown. Default: 2."""
    already_cut: bool
    """The texts' words stand between white space, cut by another program. Their strings
    are lost, so no spelling is learnt: only words are scored."""
    options: Options | None
    """How to train."""


def train_lstm(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    size: LSTMSize | None = None,
    **how: Unpack[How],
) -> LSTMLanguageModel:
    """Train p and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        size: How large the model is.
        **how: See ``How``.
    """
    about = vars(size or LSTMSize())

    def new(_: Sequence[Sequence[int]], of_words: dict[str, int]) -> LSTMLanguageModel:
        return LSTMLanguageModel(LSTMConfig(**of_words, **about))

    return train_recurrent(new, texts, dev, directory, about, **how)


def train_recurrent(
    new: Callable[[Sequence[Sequence[int]], dict[str, int]], ModelT],
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    about: dict[str, Any],
    *,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
    already_cut: bool = False,
    options: Options | None = None,
) -> ModelT:
    """Train a recurrent language model and write the checkpoint.

    ``new`` builds it, from the words of the training text with their ends and the sizes
    of the vocabulary; ``about`` is how large it is. See ``How`` for the options.
    """
    options = options or Options()
    words = tokenizer or WordTokenizer.train(
        texts, min_count=min_count, already_cut=already_cut
    )
    items, held_out = (
        [[*words(text).ids, END] for text in some] for some in (texts, dev)
    )
    of_words = sizes(words, texts)
    torch.manual_seed(options.seed)
    model = new(items, of_words)

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


def train_rnn(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    size: RNNSize | None = None,
    **how: Unpack[How],
) -> RNNLanguageModel:
    """Train p and write the checkpoint; arguments are those of ``train_lstm``."""
    about = vars(size or RNNSize())

    def new(
        items: Sequence[Sequence[int]], of_words: dict[str, int]
    ) -> RNNLanguageModel:
        of_model = {**of_words, **about}
        counts = Counter(i for ids in items for i in ids)
        frequencies = [counts[i] for i in range(of_words["vocab_size"])]
        starts = class_starts(frequencies, of_model.pop("num_classes"))
        return RNNLanguageModel(RNNConfig(class_starts=starts, **of_model))

    return train_recurrent(new, texts, dev, directory, about, **how)
