"""The original RNNG's models A, B, C as models of ours, and trees to list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lm_latent_eval.convert.rnng import configuration, rename_weights
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.tiny_models import randomised

FOLDER = Path(__file__).parents[2] / "reference" / "rnng"
TEMPERATURES = ("0.5", "0.9", "1.0", "1.1", "2.0", "5.0")
ENDS = ("no_eos", "eos")
"""How the originals name sentences without and with their end."""

TOLERANCE = {"A": 1e-10, "B": 1e-10, "C": 51 * 6e-10}
"""Nats. C sits on the bounds of P(REDUCE), where 1 - p is 5.3e-10 off in the original;
its longest sentence has 51 actions."""


@cache
def sentences(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.json").read_text())


@cache
def model(name: str, ends: str) -> RNNG:
    """Model A, B or C in float64."""
    weights = load_file(FOLDER / f"{name}.safetensors")
    config = configuration(weights, sentence_ends=ends == "eos")
    rnng = RNNG(config).double().eval()
    rnng.load_state_dict(rename_weights(weights))
    return rnng.requires_grad_(False)


class OfPrefixes(RNNG):
    """A model without sentence ends whose texts all go on."""

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> WordByWord:
        found: WordByWord = super().proposal(name, temperature).left_to_right
        return found


def tiny(
    *,
    vocab_size: int = 6,
    seed: int = 0,
    spread: float = 0.7,
    kind: type[RNNG] = RNNG,
    **options: Any,
) -> RNNG:
    """A lopsided model with two ordinary words, in float64."""
    config = RNNGConfig(
        vocab_size=vocab_size,
        hidden_size=4,
        num_layers=2,
        proposal_size=3,
        max_words=10,
        **options,
    )
    return randomised(kind(config).double(), seed, spread).eval()


def batch(texts: Sequence[Sequence[int]], ends: str):
    end = [END] if ends == "eos" else []
    return TokenBatch.collate([[*text, *end] for text in texts], first=START)


@cache
def every_tree(words: int) -> list[tuple[int, ...]]:
    """Every tree as actions: 0 is SHIFT, 1 REDUCE."""
    if words == 1:
        return [(0,)]
    return [
        (*left, *right, 1)
        for u in range(1, words)
        for left in every_tree(u)
        for right in every_tree(words - u)
    ]


def trees(texts: Sequence[Sequence[Sequence[int]]], ends: str) -> Trees:
    """Actions of K trees of each text, without what the original adds for the end."""
    words = [sum(a == 0 for a in actions[0]) for actions in texts]
    num_tokens = max(words) + (ends == "eos")
    before = torch.zeros(len(texts), len(texts[0]), num_tokens, dtype=torch.long)
    after = torch.zeros(len(texts), len(texts[0]), dtype=torch.long)
    for b, rows in enumerate(texts):
        for k, actions in enumerate(rows):
            shifts = 0
            for action in actions:
                if action == 0:
                    shifts += 1
                elif shifts < words[b] or ends == "eos":
                    before[b, k, shifts] += 1
                else:
                    after[b, k] += 1
    return Trees(before, after)


def every_prefix(tokens, *, end=False):
    """All numbers of REDUCEs before each of some tokens, as Trees of one text."""
    begun: list[tuple[tuple[int, ...], int]] = [((), 0)]  # with the size of the stack
    for _ in range(tokens):
        begun = [
            ((*before, reduces), size - reduces + 1)
            for before, size in begun
            for reduces in range(max(size, 1))
        ]
    # An end leaves one tree and itself.
    found = [before for before, size in begun if size == 2 or not end]
    before = torch.tensor(found).view(1, len(found), tokens)
    return Trees(before, torch.zeros(1, len(found), dtype=torch.long))
