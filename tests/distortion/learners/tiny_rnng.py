"""A language of a few words and an untrained RNNG over exactly these words."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from lm_latent_eval.distortion.learners.latent import exact_vocabulary
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.words import PADDING, START, UNKNOWN
from tests.models.rnng import reference

WORDS = {2: "plums", 3: "grow"}
"""Token of the language -> word."""
END_ID = 1
IDS = {2: 5, 3: 4, 1: 3}
"""Token of the language -> word id of the model, which has another order."""


def checkpoint(**options) -> Checkpoint:
    tokenizer = exact_vocabulary(["grow", "plums"])
    options = {"never_uttered": [PADDING, UNKNOWN, START], **options}
    model = reference.tiny(vocab_size=tokenizer.vocab_size, **options)
    return Checkpoint("rnng", model, tokenizer, Path("untrained"))


def sequences(longest: int) -> list[list[int]]:
    """Every sequence of at least one word and at most so many."""
    return [
        [*words, END_ID]
        for n in range(1, longest + 1)
        for words in product(WORDS, repeat=n)
    ]
