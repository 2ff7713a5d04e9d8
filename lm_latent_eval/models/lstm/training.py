"""Training of a plain LSTM language model on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.lstm.modeling import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, WordTokenizer, split
from lm_latent_eval.training import orthography
from lm_latent_eval.training.options import LSTMSize, Options
from lm_latent_eval.training.supervised import Part, Trainer


def train(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
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
        size: How large the model is.
        options: How to train.
    """
    size, options = size or LSTMSize(), options or Options()
    if tokenizer is None:
        tokenizer = WordTokenizer.train(texts, min_count=min_count)
    config = LSTMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_unknown_types=tokenizer.count_unknown_types(
            word for text in texts for word in split(text)
        ),
        **vars(size),
    )
    torch.manual_seed(options.seed)
    model = LSTMLanguageModel(config)

    def loss(items: Sequence[list[int]]) -> Tensor:
        batch = TokenBatch.collate(items, first=START)
        return -model.log_joint(model.encode(batch), 1).sum()

    trainer = Trainer(
        {"p": Part(model, loss)}, size=len, options=options, directory=directory
    )
    words = tokenizer
    trainer.run(
        [[*words(text).ids, END] for text in texts],
        [[*words(text).ids, END] for text in dev],
    )
    model.eval()  # type: ignore[no-untyped-call]
    writing = orthography.train(texts, tokenizer)
    save(model, tokenizer, directory, model.state_dict(), writing)
    return model
