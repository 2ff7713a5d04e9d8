"""Every beginning of a tree over a text of a few words, by listing."""

from __future__ import annotations

import itertools

import torch

from lm_latent_eval.models.rnng.trees import Trees


def every_prefix(tokens, *, end=False):
    """All numbers of REDUCEs before each of some tokens, as Trees of one text."""
    found = []
    for before in itertools.product(range(tokens), repeat=tokens):
        sizes = [0]
        for reduces in before:
            if reduces and reduces >= sizes[-1]:
                break
            sizes.append(sizes[-1] - reduces + 1)
        # An end leaves one tree and itself.
        if len(sizes) == tokens + 1 and not (end and sizes[-1] != 2):
            found.append(before)
    before = torch.tensor(found).view(1, len(found), tokens)
    return Trees(before, torch.zeros(1, len(found), dtype=torch.long))
