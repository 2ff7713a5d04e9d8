r"""Exact log p of short texts by summing all action histories.

.. math:: p(x) = \sum_{z_1, \dots, z_T} \prod_t p(x_t, z_t \mid z_{<t}, x_{<t})

where z_t is the number of REDUCEs before word t (``left_to_right.py``). Histories are
never merged, since each has a stack of its own: n words have as many as binary trees,
``num_trees(n)``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, wide_zeros
from lm_latent_eval.models.rnng.choices import Choices
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.growth import sent_all, shifts


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
