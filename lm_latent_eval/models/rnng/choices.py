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

from lm_latent_eval.devices import fetched, wide_zeros, widened
from lm_latent_eval.inference.ragged import segment_logsumexp
from lm_latent_eval.models.rnng.networks import GenerativeModel
from lm_latent_eval.models.rnng.stacks import (
    Integers,
    Stacks,
    sent_all,
)
from lm_latent_eval.models.rnng.trees import NOTHING, REDUCE
from lm_latent_eval.text.words import END

AT_ONCE, MORE = 4, 4
"""Choices that are listed at first; where more are likely, so many times as many."""
LEAST = 1 / 16
"""The probability of more REDUCEs below which they are not listed. Of a model of GUM
they add 0.04 to the variance of weights of 20 words, 0.3 of 80, 0.8 of 160, in units of
their squared mean."""


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
    top: Tensor
    """u of the stacks, and then of all that are listed after them, (N, d)."""
    place: Integers
    """Where in ``top`` the stack after each number is, (R, M); -1: not listed."""
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
        log_least: NDArray[np.float64] | None = None,
    ) -> Choices:
        """List the choices of stacks, (R,), distinct and in order for ``reduced``.

        Args:
            model: p(x, z).
            stacks: A table.
            row: Stacks of it.
            log_least: No more are listed after 4, 16, 64, ... where more have a lower
                log p than this, (R,): the host waits once for each such number. None:
                all are listed.
        """
        items, end = np.maximum(stacks.size[row], 1), AT_ONCE
        if log_least is None or np.isneginf(log_least).all():
            log_least, end = np.full(len(row), -np.inf), int(items.max(initial=1))
        table, going, number = stacks, np.arange(len(row)), np.ones_like(row)
        rows, place = row[:, None], going[:, None]
        top, size = stacks.top(row), stacks.size[row]
        log_shift, log_reduce = wide_zeros((2, 0), top.device)
        while True:
            used, acted = len(table), len(log_shift)
            number[going] = np.minimum(items[going], end)
            most = number[going].max(initial=1)
            reducing = np.arange(rows.shape[1], most) < number[going, None]
            moves = np.where(reducing, REDUCE, NOTHING)
            table, after = model.moved(table, rows[going, -1], moves)
            new = np.zeros((len(row), moves.shape[1]), np.int64)
            new[going] = after[:, 1:] * reducing
            rows = np.concatenate([rows, new], 1)
            new = np.where(new > 0, new - used + len(size), -1)
            place = np.concatenate([place, new], 1)
            if len(table) > used:
                top = torch.cat([top, table.states[-1][:, -1, 0]])
                size = np.append(size, table.size[used:])
            there, left = sent_all(top.device, place, size[acted:])
            shift, reduce = model.log_actions(top[acted:], left)
            log_shift = torch.cat([log_shift, shift])
            log_reduce = torch.cat([log_reduce, reduce])
            reduces = F.pad(log_reduce, (0, 1), value=-torch.inf)[there]
            if not (items > number).any():
                break
            (log_more,) = fetched(reduces.sum(-1))
            likely = log_more.double().numpy() >= log_least
            (going,) = ((number == end) & (items > end) & likely).nonzero()
            if not len(going):
                break
            end *= MORE
        log_reduced = F.pad(reduces, (1, 0)).cumsum(-1)
        log_p = log_reduced[:, :-1] + F.pad(log_shift, (0, 1), value=-torch.inf)[there]
        possible = np.arange(rows.shape[1]) < number[:, None]
        more_there_are = items > number
        return cls(
            table, rows, possible, more_there_are, top, place, log_reduced, log_p
        )

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
    exact: NDArray[np.bool_]
    """After which of them ``spoken`` is what p says, (P, M)."""
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
        ends = [AT_ONCE * MORE**n for n in range(most.bit_length())]
        for end in reversed([end for end in ends if end <= most]):
            left = log_reduced[:, end]
            unlikely = (left < math.log(LEAST)) & ~left.isneginf() & ~self.apart
            first[unlikely] = end
        stopped = self.number[self.more]
        first[self.more, 0] = first[self.more, 0].minimum(stopped)
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
            stacks, after = model.moved(stacks, row, tokens[text, t - 1, None])
            stacks, row = stacks.compact(after[:, 1])
        choices = Choices.of(model, stacks, row)
        stacks = choices.stacks
        before, reduces = choices.possible.nonzero()
        text, row = text[before], choices.row[before, reduces]
        place = choices.place[before, reduces]
        integers = before, reduces, place, stacks.size[row], tokens[text, t]
        parent, choice, there, size, word = sent_all(device, *integers)
        log_p = log_p[parent] + choices.log_p[parent, choice]
        log_p = log_p + model.log_word(choices.top[there], size, word)
    return segment_logsumexp(log_p, torch.from_numpy(text), len(tokens))


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
    stood = choices.row[:, 0]
    (which,) = sent_all(log_w.device, stood.searchsorted(row))
    weight = log_w.new_zeros(len(log_w), len(stood)).scatter_add(
        1, which.expand(log_w.shape), log_w.softmax(-1)
    )
    owner, reduces = choices.possible.nonzero()
    after, place = choices.row[owner, reduces], choices.place[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    # The original combines the tree with the end word, and charges for it.
    charges = model.config.sentence_ends and not model.config.only_possible
    log_end = _log_end(model, choices.stacks, after) if charges else None
    for first in range(0, len(after), model.rows_at_once):
        part = slice(first, first + model.rows_at_once)
        size = choices.stacks.size[after[part]]
        there, items, o, r = sent_all(
            log_w.device, place[part], size, owner[part], reduces[part]
        )
        spoken = widened(model.log_words(choices.top[there], items))
        if log_end is not None:
            spoken[:, END] += log_end[part]
        result += (weight[:, o] * choices.log_p[o, r].exp()) @ spoken.exp()
    return result.log()


def _log_end(model: GenerativeModel, stacks: Stacks, after: Integers) -> Tensor:
    """Return the price of an end after each of some stacks, nats, (R,)."""
    stacks, path = model.moved(stacks, after, np.full((len(after), 1), END))
    (items,) = sent_all(stacks.device, stacks.size[path[:, 1]])
    log_reduce: Tensor = model.log_actions(stacks.top(path[:, 1]), items)[1]
    return log_reduce
