r"""Numbers of REDUCEs before the next word: listed, and summed over exactly.

The next word is predicted by the sum over them, and log p of a short text is

.. math:: p(x) = \sum_{z_1, \dots, z_T} \prod_t p(x_t, z_t \mid z_{<t}, x_{<t})

where z_t is the number of REDUCEs before word t (``left_to_right.py``). Histories are
never merged, since each has a stack of its own: n words have as many as binary trees,
``num_trees(n)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.models.rnng.networks import GenerativeModel
from lm_latent_eval.models.rnng.stacks import (
    Integers,
    Stacks,
    reductions,
    sent_all,
    shifts,
)
from lm_latent_eval.text.words import END


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


def log_marginal(model: GenerativeModel, words: Tensor) -> Tensor:
    """Sum over all trees of texts, or over all beginnings of trees.

    Args:
        model: One that is normalised (``only_possible``).
        words: Word ids of texts of one length, with their end word or without,
            (B, T).

    Returns:
        Nats, (B,) float64: of a text with its end word log p of the sentence, of one
        without that of all sentences that begin so. ``-inf`` if there are none.
    """
    device, tokens = words.device, fetched(words)[0].numpy()
    stacks, row = model.begin(), np.zeros(len(tokens), np.int64)
    text, log_p = np.arange(len(tokens)), wide_zeros((len(tokens),), device)
    for t in range(tokens.shape[1]):
        if t > 0:
            growth = shifts(stacks, row, tokens[text, t - 1])
            row = len(stacks) + np.arange(len(row))
            stacks, row = model.grown(stacks, growth).compact(row)
        choices = Choices.of(model, stacks, row)
        stacks = choices.stacks
        before, reduces = choices.possible.nonzero()
        text, row = text[before], choices.row[before, reduces]
        integers = before, reduces, row, stacks.size[row], tokens[text, t]
        parent, choice, place, size, word = sent_all(device, *integers)
        log_p = log_p[parent] + choices.log_p[parent, choice]
        log_p = log_p + model.log_word(stacks.top(place), size, word)
    return _logsumexp(log_p, sent(torch.from_numpy(text), device), len(tokens))


def _logsumexp(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the logarithm of the sum of exponentials of each group, (num_groups,)."""
    peak = values.new_full((num_groups,), -torch.inf)
    peak = peak.scatter_reduce(0, group, values, "amax")
    peak = peak.where(peak.isfinite(), 0)
    total = torch.zeros_like(peak).index_add(0, group, (values - peak[group]).exp())
    return total.log() + peak


def next_word(
    model: GenerativeModel, choices: Choices, row: Integers, log_w: Tensor
) -> Tensor:
    """Predict the first word of B texts from K weighted histories, (B, V) nats.

    Args:
        model: p(x, z).
        choices: Those before the word, of all stacks that there are.
        row: The stack of each history, (B, K).
        log_w: Its weight in nats, (B, K).
    """
    place = choices.row[:, 0]
    (which,) = sent_all(log_w.device, place.searchsorted(row))
    weight = log_w.new_zeros(len(log_w), len(place)).scatter_add(
        1, which.expand(log_w.shape), log_w.softmax(-1)
    )
    owner, reduces = choices.possible.nonzero()
    after = choices.row[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    # The original combines the tree with the end word, and charges for it.
    charges = model.config.sentence_ends and not model.config.only_possible
    log_end = _log_end(model, choices.stacks, after) if charges else None
    for first in range(0, len(after), model.rows_at_once):
        part = slice(first, first + model.rows_at_once)
        size = choices.stacks.size[after[part]]
        where, items, o, r = sent_all(
            log_w.device, after[part], size, owner[part], reduces[part]
        )
        spoken = widened(model.log_words(choices.stacks.top(where), items))
        if log_end is not None:
            spoken[:, END] += log_end[part]
        result += (weight[:, o] * choices.log_p[o, r].exp()) @ spoken.exp()
    return result.log()


def _log_end(model: GenerativeModel, stacks: Stacks, after: Integers) -> Tensor:
    """Return the price of an end after each of some stacks, nats, (R,)."""
    grown = model.grown(stacks, shifts(stacks, after, np.full_like(after, END)))
    (items,) = sent_all(grown.state.device, grown.size[len(stacks) :])
    log_reduce: Tensor = model.log_actions(grown.state[len(stacks) :, -1, 0], items)[1]
    return log_reduce
