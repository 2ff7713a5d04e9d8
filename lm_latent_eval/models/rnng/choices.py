r"""Numbers of REDUCEs before the next word: listed, and summed over exactly.

The next word is predicted by the sum over them, and log p of a short text is

.. math:: p(x) = \sum_{z_1, \dots, z_T} \prod_t p(x_t, z_t \mid z_{<t}, x_{<t})

where z_t is the number of REDUCEs before word t (``left_to_right.py``). Histories are
never merged, since each has a stack of its own: n words have as many as binary trees,
``num_trees(n)``.
"""

from __future__ import annotations

import math
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

AT_ONCE = 16
"""REDUCEs that are listed at first; where more are likely, twice as many, and so on."""
LEAST = 1 / 16
"""The probability of more REDUCEs below which they are not listed. Of a model of GUM
they add less than 0.005 to the variance of log-weights of 24 words, 0.07 of 80."""


@dataclass(frozen=True)
class Choices:
    """Numbers of REDUCEs, 0 .. M - 1, before the next SHIFT of R stacks."""

    stacks: Stacks
    """A table that has the stacks after them, too."""
    row: Integers
    """The stack after them, (R, M), in order; 0 where they are not listed."""
    possible: NDArray[np.bool_]
    """Which are listed, (R, M): all that there can be, or all that are likely."""
    more: NDArray[np.bool_]
    """Of which stacks there can be more, (R,)."""
    log_reduced: Tensor
    """log P(so many REDUCEs or more) in nats, 0 .. M, (R, M + 1) float64."""
    log_p: Tensor
    """log P(so many REDUCEs, then SHIFT) in nats, (R, M) float64; -inf: not listed."""

    @classmethod
    def of(
        cls,
        model: GenerativeModel,
        stacks: Stacks,
        row: Integers,
        whole: NDArray[np.bool_] | None = None,
    ) -> Choices:
        """List the choices of stacks, (R,), distinct and in order for ``reduced``.

        Args:
            model: p(x, z).
            stacks: A table.
            row: Stacks of it.
            whole: Of which all are listed, (R,). Of the others none after 16, 32, ...
                where more have a probability below ``LEAST``: the host waits once for
                each such number. None: all of all.
        """
        items = np.maximum(stacks.size[row], 1)
        end = AT_ONCE
        if whole is None or whole.all():
            whole, end = np.ones_like(row, bool), int(items.max(initial=1))
        made, rows = reductions(stacks, row, end)
        table = model.reduced(stacks, made)
        log_shift, log_reduce = _log_actions(model, table, rows)
        number = np.minimum(items, end)
        while (items > number).any():
            (left,) = fetched(log_reduce.sum(-1))
            likely = whole | (left >= math.log(LEAST)).numpy()
            (going,) = ((number == end) & (items > end) & likely).nonzero()
            if not len(going):
                break
            made, more = reductions(table, rows[going, -1], end + 1)
            table = model.reduced(table, made)
            new = np.zeros((len(row), more.shape[1] - 1), np.int64)
            new[going] = more[:, 1:]
            rows, end = np.concatenate([rows, new], 1), 2 * end
            actions = _log_actions(model, table, new)
            log_shift = torch.cat([log_shift, actions[0]], 1)
            log_reduce = torch.cat([log_reduce, actions[1]], 1)
            number[going] = np.minimum(items[going], end)
        log_reduced = F.pad(log_reduce, (1, 0)).cumsum(-1)
        possible = np.arange(rows.shape[1]) < number[:, None]
        listed = sent(torch.from_numpy(possible), log_shift.device)
        log_p = (log_reduced[:, :-1] + log_shift).masked_fill(~listed, -torch.inf)
        return cls(table, rows, possible, items > number, log_reduced, log_p)

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


def _log_actions(
    model: GenerativeModel, stacks: Stacks, rows: Integers
) -> tuple[Tensor, Tensor]:
    """Return log P(SHIFT) and log P(REDUCE) of stacks, any shape, nats."""
    where, size = sent_all(stacks.state.device, rows.ravel(), stacks.size[rows].ravel())
    log_shift, log_reduce = model.log_actions(stacks.top(where), size)
    return log_shift.view(rows.shape), log_reduce.view(rows.shape)


@dataclass(frozen=True)
class Listed:
    """The choices before one word, of P distinct pairs of a stack and the word."""

    pair: Integers
    """Which of them each history stands before, (B, K)."""
    row: Integers
    """The stack after each choice, (P, M)."""
    number: Tensor
    """How many choices are listed, (P,), on the host."""
    more: Tensor
    """Whether there are others, (P,) bool, on the host."""
    unfinished: Tensor
    """Which leave no sentence where the word is an end, (P, M) bool, the same."""
    apart: Tensor
    """Of which no choices are one class, (P,) bool, the same."""
    stack: Integers
    """Which stack each pair is of, (P,)."""
    log_p: Tensor
    """log P(so many REDUCEs, then SHIFT) of distinct stacks, (R, M)."""
    log_reduced: Tensor
    """log P(so many REDUCEs or more) of them, (R, M + 1)."""
    spoken: Tensor
    """log P(word | SHIFT) after each choice of each pair, or what stands for it,
    (P, M); -inf: not listed."""

    @property
    def computed(self) -> tuple[Tensor, Tensor, Tensor]:
        """What may be on a device."""
        return self.log_p, self.log_reduced, self.spoken

    def first_unlikely(self, log_reduced: Tensor) -> Tensor:
        """Return from which number on REDUCEs are one class, (P, 1); M: there is none.

        Args:
            log_reduced: As it is of each pair, on the host, (P, M + 1).
        """
        most = log_reduced.shape[1] - 1
        first = torch.full((len(log_reduced), 1), most)
        ends = [AT_ONCE << n for n in range(most.bit_length())]
        for end in reversed([end for end in ends if end <= most]):
            left = log_reduced[:, end]
            unlikely = (left < math.log(LEAST)) & ~left.isneginf() & ~self.apart
            first[unlikely] = end
        first[self.more, 0] = self.number[self.more]
        return first

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
