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
"""Number of choices listed at first, and the factor by which the list grows."""
LEAST = 1 / 16
"""Probability of more REDUCEs below which they are not listed.

With a model trained on GUM the omission adds 0.04 to the variance of weights of 20
words, 0.3 of 80, 0.8 of 160, in units of their squared mean."""


@dataclass(frozen=True)
class Choices:
    """Numbers of REDUCEs, 0 .. M - 1, before the next SHIFT of R stacks."""

    stacks: Stacks
    """Table that includes the stacks after the REDUCEs."""
    row: Integers
    """Stack after each number of REDUCEs, (R, M); 0 if not listed."""
    possible: NDArray[np.bool_]
    """Mask of listed choices, (R, M)."""
    more: NDArray[np.bool_]
    """Mask of stacks with further possible choices, (R,)."""
    top: Tensor
    """u of the R stacks, then of those listed after them, (N, d)."""
    top_row: Integers
    """Index in ``top`` of the stack after each number, (R, M); -1 if not listed."""
    log_reduced: Tensor
    """log P(at least this many REDUCEs), 0 .. M, (R, M + 1) nats, float64."""
    log_p: Tensor
    """log P(this many REDUCEs, then SHIFT), (R, M) nats, float64; -inf if not listed.
    """

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
            log_least: Threshold of the log p of further REDUCEs, (R,): a list of 4,
                16, 64, ... grows only while they exceed it, and the host waits once
                for each. None lists all.
        """
        items, end = np.maximum(stacks.size[row], 1), AT_ONCE
        if log_least is None or np.isneginf(log_least).all():
            log_least, end = np.full(len(row), -np.inf), int(items.max(initial=1))
        table, going, num_listed = stacks, np.arange(len(row)), np.ones_like(row)
        rows, index = row[:, None], going[:, None]
        top, size = stacks.top(row), stacks.size[row]
        log_shift, log_reduce = wide_zeros((2, 0), top.device)
        while True:
            used, acted = len(table), len(log_shift)
            num_listed[going] = np.minimum(items[going], end)
            size_now = num_listed[going].max(initial=1)
            reducing = np.arange(rows.shape[1], size_now) < num_listed[going, None]
            moves = np.where(reducing, REDUCE, NOTHING)
            table, after = model.moved(table, rows[going, -1], moves)
            new = np.zeros((len(row), moves.shape[1]), np.int64)
            new[going] = after[:, 1:] * reducing
            rows = np.concatenate([rows, new], 1)
            new = np.where(new > 0, new - used + len(size), -1)
            index = np.concatenate([index, new], 1)
            if len(table) > used:
                top = torch.cat([top, table.states[-1][:, -1, 0]])
                size = np.append(size, table.size[used:])
            top_index, left = sent_all(top.device, index, size[acted:])
            shift, reduce = model.log_actions(top[acted:], left)
            log_shift = torch.cat([log_shift, shift])
            log_reduce = torch.cat([log_reduce, reduce])
            reduces = F.pad(log_reduce, (0, 1), value=-torch.inf)[top_index]
            if not (items > num_listed).any():
                break
            (log_more,) = fetched(reduces.sum(-1))
            likely = log_more.double().numpy() >= log_least
            (going,) = ((num_listed == end) & (items > end) & likely).nonzero()
            if not len(going):
                break
            end *= MORE
        log_reduced = F.pad(reduces, (1, 0)).cumsum(-1)
        log_shift = F.pad(log_shift, (0, 1), value=-torch.inf)[top_index]
        log_p = log_reduced[:, :-1] + log_shift
        possible = np.arange(rows.shape[1]) < num_listed[:, None]
        more = items > num_listed
        return cls(table, rows, possible, more, top, index, log_reduced, log_p)

    def reduced(
        self, row: Integers, reduces: Integers
    ) -> tuple[Integers, Integers, Tensor]:
        """Apply up to ``reduces`` REDUCEs to given stacks of any shape.

        Returns:
            The stacks after them, the number of REDUCEs, and their log p in nats.
        """
        which = self.row[:, 0].searchsorted(row)
        done = np.minimum(reduces, self.possible.sum(-1)[which] - 1)
        index = sent_all(self.log_reduced.device, which, done)
        return self.row[which, done], done, self.log_reduced[tuple(index)]


@dataclass(frozen=True)
class Listed:
    """Choices before one word, of P distinct pairs of a stack and the word."""

    pair: Integers
    """Index of the pair that each history has, (B, K)."""
    row: Integers
    """Stack after each choice, (P, M)."""
    number: Tensor
    """Number of listed choices, (P,), on the host."""
    more: Tensor
    """Mask of pairs with further choices, (P,), on the host."""
    unfinished: Tensor
    """Mask of choices that leave no sentence before an end word, (P, M), on the host.
    """
    apart: Tensor
    """Mask of pairs whose choices form no class, (P,), on the host."""
    stack: Integers
    """Index of each pair's stack, (P,)."""
    log_p: Tensor
    """log P(this many REDUCEs, then SHIFT) of distinct stacks, (R, M)."""
    log_reduced: Tensor
    """log P(at least this many REDUCEs) of distinct stacks, (R, M + 1)."""
    spoken: Tensor
    """log P(word | SHIFT) after each choice, (P, M); -inf if not listed."""

    @property
    def computed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors that may be on a device."""
        return self.log_p, self.log_reduced, self.spoken

    def first_unlikely(self, log_reduced: Tensor) -> Tensor:
        """First number of REDUCEs of the unlikely class, (P, 1); M if there is none.

        Args:
            log_reduced: The field for each pair, on the host, (P, M + 1).
        """
        num_choices = log_reduced.shape[1] - 1
        first = torch.full((len(log_reduced), 1), num_choices)
        ends = [AT_ONCE * MORE**n for n in range(num_choices.bit_length())]
        for end in reversed([end for end in ends if end <= num_choices]):
            left = log_reduced[:, end]
            unlikely = (left < math.log(LEAST)) & ~left.isneginf() & ~self.apart
            first[unlikely] = end
        stopped = self.number[self.more]
        first[self.more, 0] = first[self.more, 0].minimum(stopped)
        return first

    def resampled(self, origin: Integers) -> Listed:
        return replace(self, pair=np.take_along_axis(self.pair, origin, 1))

    def after(self, reduces: Tensor) -> Integers:
        """Stack of each history after its REDUCEs, (B, K)."""
        stack: Integers = self.row[self.pair, reduces.numpy()]
        return stack


def log_marginal(model: GenerativeModel, words: Tensor) -> Tensor:
    """Sum over all trees of texts, or over all beginnings of trees.

    Args:
        model: One that is normalised (``only_possible``).
        words: Word ids of texts of one length, with or without their end word, (B, T).

    Returns:
        Nats, (B,) float64: log p of the sentence if a text has its end word, else of
        all sentences that begin so. ``-inf`` if there are none.
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
        top_row = choices.top_row[before, reduces]
        integers = before, reduces, top_row, stacks.size[row], tokens[text, t]
        parent, choice, top_index, size, word = sent_all(device, *integers)
        log_p = log_p[parent] + choices.log_p[parent, choice]
        log_p = log_p + model.log_word(choices.top[top_index], size, word)
    return segment_logsumexp(log_p, torch.from_numpy(text), len(tokens))


def next_word(
    model: GenerativeModel, choices: Choices, row: Integers, log_w: Tensor
) -> Tensor:
    """Predict the first word of B texts from K weighted histories, (B, V) nats.

    Args:
        model: p(x, z).
        choices: Choices before the word, of all stacks.
        row: Stack of each history, (B, K).
        log_w: Weight of each history in nats, (B, K).
    """
    stood = choices.row[:, 0]
    (which,) = sent_all(log_w.device, stood.searchsorted(row))
    weight = log_w.new_zeros(len(log_w), len(stood)).scatter_add(
        1, which.expand(log_w.shape), log_w.softmax(-1)
    )
    owner, reduces = choices.possible.nonzero()
    after, top_row = choices.row[owner, reduces], choices.top_row[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    # The original combines the tree with the end word, and charges for it.
    charges = model.config.sentence_ends and not model.config.only_possible
    log_end = _log_end(model, choices.stacks, after) if charges else None
    for first in range(0, len(after), model.rows_at_once):
        part = slice(first, first + model.rows_at_once)
        size = choices.stacks.size[after[part]]
        top_index, items, o, r = sent_all(
            log_w.device, top_row[part], size, owner[part], reduces[part]
        )
        spoken = widened(model.log_words(choices.top[top_index], items))
        if log_end is not None:
            spoken[:, END] += log_end[part]
        result += (weight[:, o] * choices.log_p[o, r].exp()) @ spoken.exp()
    return result.log()


def _log_end(model: GenerativeModel, stacks: Stacks, after: Integers) -> Tensor:
    """log p that the original charges after an end, (R,) nats."""
    stacks, path = model.moved(stacks, after, np.full((len(after), 1), END))
    (items,) = sent_all(stacks.device, stacks.size[path[:, 1]])
    log_reduce: Tensor = model.log_actions(stacks.top(path[:, 1]), items)[1]
    return log_reduce
