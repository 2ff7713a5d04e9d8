"""Corpora of a small language, and untrained models of its words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.words import (
    PADDING,
    SPECIAL_WORDS,
    START,
    UNKNOWN,
    WordTokenizer,
)
from tests import tiny_models
from tests.distortion.languages.tiny import regular
from tests.models.rnng import reference

MAX_LENGTH = 9


def draw(
    directory: Path, num: int, first: int = 0, language: Any = None, **settings: Any
) -> Corpus:
    """Draw a corpus of a language, or of a regular one."""
    settings = {"max_length": MAX_LENGTH, "shard_size": 17} | settings
    language = language or regular()
    return Corpus.draw(language, directory, num, first=first, quiet=True, **settings)


WORDS = {2: "plums", 3: "grow"}
"""Token of the language -> word."""
END_ID = 1


def checkpoint(words: Iterable[str] = ("grow", "plums"), **options) -> Checkpoint:
    listed = [*SPECIAL_WORDS, *words]
    tokenizer = WordTokenizer.at_white_space(listed, len(listed))
    options = {"never_uttered": [PADDING, UNKNOWN, START], **options}
    model = reference.tiny(vocab_size=tokenizer.vocab_size, **options)
    return Checkpoint("rnng", model, tokenizer, Path("untrained"))


def unlike(name: str, *given: Any) -> Checkpoint:
    """A checkpoint of a tiny model that is no RNNG."""
    model = getattr(tiny_models, name)(*given, seed=3)
    return Checkpoint(name, model, tiny_models.tokenizer(), Path("untrained"))


def opinionated() -> Checkpoint:
    """An RNNG whose words tell much of their trees."""
    given = checkpoint(seed=2, spread=1.0)
    generative = given.model.generative
    for even in (generative.bias, generative.action.bias):
        even.zero_()
    generative.embeddings.weight.mul_(3)
    return given


LATENT = {
    "rnng": lambda: LatentLanguage(opinionated(), batch_size=40),
    "lstm": lambda: LatentLanguage(unlike("lstm"), batch_size=40),
}


def sequences(longest: int) -> list[list[int]]:
    """Every sequence of at least one word and at most so many."""
    return [
        [*words, END_ID]
        for n in range(1, longest + 1)
        for words in product(WORDS, repeat=n)
    ]
