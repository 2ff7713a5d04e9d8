"""Enumeration of the numbers of REDUCEs before the next word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.growth import reductions, sent_all
from lm_latent_eval.models.rnng.stacks import Integers, Stacks


@dataclass(frozen=True)
class Choices:
    """Every number of REDUCEs, 0 .. M - 1, before the next SHIFT of R stacks."""

    stacks: Stacks
    """A table that has the stacks after them, too."""
    row: Integers
    """The stack after them, (R, M), in order; 0 where there are fewer items."""
    possible: NDArray[np.bool_]
    """Where there are as many, (R, M)."""
    log_reduced: Tensor
    """log P(so many REDUCEs) in nats, (R, M) float64."""
    log_p: Tensor
    """log P(so many REDUCEs, then SHIFT), the same."""

    @classmethod
    def of(cls, model: GenerativeModel, stacks: Stacks, row: Integers) -> Choices:
        """List the choices of stacks, (R,), distinct and in order for ``reduced``."""
        growth, rows = reductions(stacks, row)
        table = model.grown(stacks, growth)
        size = table.size[rows]
        where, there = sent_all(table.state.device, rows.ravel(), size.ravel())
        log_shift, log_reduce = (
            log_p.view(rows.shape)
            for log_p in model.log_actions(table.top(where), there)
        )
        # Nothing can be reduced after the last choice, so all past it is -inf.
        log_reduced = F.pad(log_reduce[:, :-1], (1, 0)).cumsum(-1)
        items = np.maximum(stacks.size[row], 1)
        possible = np.arange(rows.shape[1]) < items[:, None]
        return cls(table, rows, possible, log_reduced, log_reduced + log_shift)

    def lists(self, row: Integers) -> bool:
        """Whether all of these stacks are among those before the choices."""
        return bool(np.isin(row, self.row[:, 0]).all())

    def reduced(
        self, row: Integers, reduces: Integers
    ) -> tuple[Integers, Integers, Tensor]:
        """Do REDUCEs to some of the stacks, any shape, as many as there can be.

        Returns:
            The stacks after them, how many they are, and their log p in nats.
        """
        which = self.row[:, 0].searchsorted(row)
        done = np.minimum(reduces, self.possible.sum(-1)[which] - 1)
        there = sent_all(self.log_reduced.device, which, done)
        return self.row[which, done], done, self.log_reduced[tuple(there)]


@dataclass(frozen=True)
class Listed:
    """The choices before one word, of P distinct pairs of a stack and the word."""

    pair: Integers
    """Which of them each history stands before, (B, K)."""
    row: Integers
    """The stack after each choice, (P, M)."""
    possible: Tensor
    """Which choices there are, (P, M) bool, on the host."""
    unfinished: Tensor
    """Which leave no sentence where the word is an end, the same."""
    stack: Integers
    """Which stack each pair is of, (P,)."""
    log_p: Tensor
    """log P(so many REDUCEs, then SHIFT) of distinct stacks, (R, M)."""
    spoken: Tensor
    """log P(word | SHIFT) after each possible choice of each pair."""

    def resampled(self, origin: Integers) -> Listed:
        """Pick histories of each text, (B, K')."""
        return replace(self, pair=np.take_along_axis(self.pair, origin, 1))

    def after(self, reduces: Tensor) -> Integers:
        """Return the stack of each history after so many REDUCEs, (B, K)."""
        found: Integers = self.row[self.pair, reduces.numpy()]
        return found
