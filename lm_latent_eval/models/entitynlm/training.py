"""Supervised training of an EntityNLM and its proposals on annotated text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import torch

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.data import CoreferenceText
from lm_latent_eval.models.entitynlm.latents import NOBODY, Chains
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.learning import annotated_parts, sizes, train_annotated
from lm_latent_eval.text.words import END, WordTokenizer
from lm_latent_eval.training.options import EntityNLMSize, Options


def train_entitynlm(
    texts: Sequence[CoreferenceText],
    dev: Sequence[CoreferenceText],
    directory: Path,
    *,
    min_count: int = 2,
    size: EntityNLMSize | None = None,
    options: Options | None = None,
) -> EntityNLM:
    """Train p and its proposals, and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        min_count: Rarer words are unknown.
        size: How large the model is.
        options: How to train.

    Returns:
        The model with the best weights of each part.
    """
    size, options = size or EntityNLMSize(), options or Options()
    tokenizer = WordTokenizer.train((t.text for t in texts), min_count=min_count)
    config = EntityNLMConfig(
        **sizes(tokenizer, (text.text for text in texts)), **vars(size)
    )
    torch.manual_seed(options.seed)
    model = EntityNLM(config)
    annotate = Annotator(tokenizer, size.max_mention_length)
    parts = annotated_parts(model, Chains)
    train_annotated(
        model, parts, annotate, texts, dev, directory, tokenizer, vars(size), options
    )
    return model


# -- chains of annotated texts ------------------------------------------------------


class Annotator:
    """Turns annotated texts into word ids and the chain that is annotated.

    A word belongs to the mentions in which it starts. A chain mentions one entity at a
    time: mentions of more than ``max_mention_length`` words are left out first, and of
    those that overlap the one that begins first, the outermost, remains. Entities are
    numbered by the first of their mentions that remain.
    """

    def __init__(self, tokenizer: WordTokenizer, max_mention_length: int) -> None:
        self.tokenizer, self.max_mention_length = tokenizer, max_mention_length

    def __call__(self, text: CoreferenceText) -> tuple[list[int], list[int], list[int]]:
        """Return word ids (the end included), entities and remaining words, T each."""
        words = self.tokenizer(text.text)
        entity = [NOBODY] * (len(words.ids) + 1)
        remaining = [0] * (len(words.ids) + 1)
        number: dict[int, int] = {}
        for first, end, name in self._mentions(text, words.starts):
            for t in range(first, end):
                entity[t] = number.setdefault(name, len(number) + 1)
                remaining[t] = end - 1 - t
        return [*words.ids, END], entity, remaining

    def _mentions(
        self, text: CoreferenceText, starts: list[int]
    ) -> list[tuple[int, int, int]]:
        """List first word, one past the last, and entity of mentions that remain."""
        found = []
        for mention in text.mentions:
            first = bisect_left(starts, mention.start)
            end = bisect_left(starts, mention.end)
            if 0 < end - first <= self.max_mention_length:
                found.append((first, end, mention.entity))
        kept: list[tuple[int, int, int]] = []
        for first, end, name in sorted(found, key=lambda m: (m[0], -m[1])):
            if not kept or first >= kept[-1][1]:
                kept.append((first, end, name))
        return kept
