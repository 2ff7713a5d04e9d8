"""A network of three words that is a table, and all that can be written with it."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, product

import torch

from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.wrappers.mdm.unmasking import RULES, Unmasking

WORDS, MASK = (0, 1, 2), 3


class Listed:
    """Scores of each place for every masked text, drawn once."""

    def __init__(self, length: int = 3, seed: int = 0, *, ties: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (*[len(WORDS) + 1] * length, length, len(WORDS) + 1)
        scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
        self.scores = scores.round() if ties else scores
        self.length, self.read = length, 0

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self.read += len(tokens)
        return self.scores[tuple(tokens.T)]

    def reader(self, **how) -> MaskedReader:
        return MaskedReader(self, MASK, 0, len(WORDS) + 1, torch.device("cpu"), **how)

    def rows(self, state) -> torch.Tensor:
        """log p of every token at every place, (L, 4)."""
        rows = self.scores[tuple(state)].clone()
        rows[:, MASK] = -torch.inf
        return rows.log_softmax(-1)

    def written(self, rule: Unmasking, blocks: int | None = None):
        """p of every text by all that can be drawn: sequences of whole samples.

        Nothing of the implementation is used: at every step all samples of all hidden
        places of the block are listed, and the rule picks which of them are kept.
        """
        size = blocks or self.length
        states = {(MASK,) * self.length: 1.0}
        for first in range(0, self.length, size):
            block = range(first, min(first + size, self.length))
            while any(state[i] == MASK for state in states for i in block):
                after = defaultdict(float)
                for state, mass in states.items():
                    for new, p in self.step(rule, state, block):
                        after[new] += mass * p
                states = dict(after)
        return states

    def step(self, rule: Unmasking, state, block):
        hidden = [i for i in block if state[i] == MASK]
        if not hidden:
            yield state, 1.0
            return
        rows = self.rows(state)
        for words in product(WORDS, repeat=len(hidden)):
            p = math.exp(
                sum(float(rows[i, w]) for i, w in zip(hidden, words, strict=True))
            )
            sample = dict(zip(hidden, words, strict=True))
            kept_sets = list(self.kept(rule, rows, sample))
            for kept in kept_sets:
                new = tuple(sample[i] if i in kept else t for i, t in enumerate(state))
                yield new, p / len(kept_sets)

    def kept(self, rule: Unmasking, rows, sample):
        hidden, k = sorted(sample), rule.tokens_per_step
        if rule.rule == "any_order":
            yield from map(set, combinations(hidden, min(k, len(hidden))))
            return
        if rule.rule == "low_confidence":
            sure = {i: float(rows[i, w]) for i, w in sample.items()}
        else:
            own = RULES[rule.rule](rows[hidden])
            sure = {i: float(s) for i, s in zip(hidden, own, strict=True)}
        best = sorted(hidden, key=lambda i: (-sure[i], i))
        kept = set(best[:k])
        if rule.threshold is not None:
            kept |= {i for i in hidden if math.exp(sure[i]) > rule.threshold}
        yield kept
