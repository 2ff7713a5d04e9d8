"""Texts with coreference annotation as word ids and entity chains."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from lm_latent_eval.models.entitynlm.chain import NOBODY, Chains
from lm_latent_eval.models.entitynlm.conll import CoreferenceText
from lm_latent_eval.text.words import END, WordTokenizer


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


def collate_chains(
    entity: Sequence[list[int]], remaining: Sequence[list[int]]
) -> Chains:
    """Pad annotations of B texts, (B, 1, T)."""
    return Chains(_pad(entity)[:, None], _pad(remaining)[:, None])


def _pad(rows: Sequence[list[int]]) -> Tensor:
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values)
    return padded
