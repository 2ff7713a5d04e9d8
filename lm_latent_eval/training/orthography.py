"""Training of spelling and spacing models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from lm_latent_eval.text.orthography import Orthography
from lm_latent_eval.text.spacing import Spacing
from lm_latent_eval.text.spelling import BYTES, Spelling
from lm_latent_eval.text.words import LITERAL_UNKNOWN, WordTokenizer, split
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.supervised import Part, Trainer

OPTIONS = Options(epochs=20, batch_size=64, learning_rate=3e-3, patience=2)
HELD_OUT = 10
"""Every tenth word type says when to stop."""


def learn_orthography(
    texts: Sequence[str],
    tokenizer: WordTokenizer,
    *,
    alphabet: bytes = BYTES,
    options: Options = OPTIONS,
    most: int | None = None,
) -> Orthography:
    """Fit spelling and spacing to the texts that a model was trained on.

    Every word type counts once, known ones included: rare words look like types, and
    there are more of them. A minute's work, so nothing is kept of an interrupted run.

    Args:
        texts: Training text.
        tokenizer: The model's words, which spellings exclude.
        alphabet: The bytes that words are made of.
        options: How to train the spelling.
        most: Epochs, at most, where fewer are asked for than ``options`` says.

    Raises:
        ValueError: If the texts have no words.
    """
    options = replace(options, epochs=min(options.epochs, most or options.epochs))
    types = sorted({word for text in texts for word in split(text)} - {LITERAL_UNKNOWN})
    if not types:
        raise ValueError("the texts have no words to learn spelling from")
    held_out = types[::HELD_OUT]
    rest = sorted(set(types) - set(held_out)) or held_out
    torch.manual_seed(options.seed)
    spelling = Spelling(alphabet)

    def loss(words: Sequence[str]) -> Tensor:
        return -spelling.log_mass(words).sum()

    with TemporaryDirectory() as temporary:  # state and lock lie beside a directory
        trainer = Trainer(
            {"spelling": Part(spelling, loss)},
            size=lambda word: len(word.encode()) + 1,
            options=options,
            directory=Path(temporary) / "spelling",
            unit="word types",
        )
        trainer.run(rest, held_out)
    spelling.eval().requires_grad_(False)
    spelling.exclude(tokenizer.vocabulary)
    spacing = Spacing.train((text, tokenizer(text)) for text in texts)
    return Orthography(spelling, spacing)
