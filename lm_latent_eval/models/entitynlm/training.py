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
        directory: Folder of the checkpoint. An interrupted run there is resumed.
        min_count: Rarer words are unknown.
        size: Size of the model.
        options: Options of training.

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
    """Turns annotated texts into word ids and annotated chains.

    A word belongs to the mentions in which it starts. A chain mentions one entity at a
    time: mentions of more than ``max_mention_length`` words are dropped first, and of
    overlapping ones the outermost first one remains. Entities are numbered by the first
    of their remaining mentions.
    """

    def __init__(self, tokenizer: WordTokenizer, max_mention_length: int) -> None:
        self.tokenizer, self.max_mention_length = tokenizer, max_mention_length

    def __call__(self, text: CoreferenceText) -> tuple[list[int], list[int], list[int]]:
        """Word ids (with the end word), entities and remaining words, T each."""
        words = self.tokenizer(text.text)
        entity = [NOBODY] * (len(words.ids) + 1)
        remaining = [0] * (len(words.ids) + 1)
        entity_ids: dict[int, int] = {}
        for first, end, name in self._mentions(text, words.starts):
            for t in range(first, end):
                entity[t] = entity_ids.setdefault(name, len(entity_ids) + 1)
                remaining[t] = end - 1 - t
        return [*words.ids, END], entity, remaining

    def _mentions(
        self, text: CoreferenceText, starts: list[int]
    ) -> list[tuple[int, int, int]]:
        """First word, one past the last, and entity of mentions that remain."""
        candidates = []
        for mention in text.mentions:
            first = bisect_left(starts, mention.start)
            end = bisect_left(starts, mention.end)
            if 0 < end - first <= self.max_mention_length:
                candidates.append((first, end, mention.entity))
        kept: list[tuple[int, int, int]] = []
        for first, end, name in sorted(candidates, key=lambda m: (m[0], -m[1])):
            if not kept or first >= kept[-1][1]:
                kept.append((first, end, name))
        return kept
