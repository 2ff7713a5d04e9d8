r"""Exact log p of short texts: every history of actions, word by word.

.. math:: p(x) = \sum_{z_1, \dots, z_T} \prod_t p(x_t, z_t \mid z_{<t}, x_{<t})

where z_t is the number of REDUCEs before word t (``left_to_right.py``). Histories are
never merged, since each has a stack of its own: n words have as many as binary trees,
``num_trees(n)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.left_to_right import Choices


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
    stacks, row = model.begin(), words.new_zeros(len(words))
    text = torch.arange(len(words), device=words.device)
    log_p = wide_zeros((len(words),), words.device)
    for t in range(words.shape[1]):
        if t > 0:
            row = model.shift(stacks, row, words[text, t - 1])
            stacks, row = stacks.compact(row)
        choices = Choices.of(model, stacks, row)
        before, reduces = (choices.log_p > -torch.inf).nonzero(as_tuple=True)
        text, row = text[before], choices.row[before, reduces]
        log_p = log_p[before] + choices.log_p[before, reduces]
        log_p = log_p + model.log_word(stacks, row, words[text, t])
    return _logsumexp(log_p, text, len(words))


def _logsumexp(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the logarithm of the sum of exponentials of each group, (num_groups,)."""
    peak = values.new_full((num_groups,), -torch.inf)
    peak = peak.scatter_reduce(0, group, values, "amax")
    peak = peak.where(peak.isfinite(), 0)
    total = torch.zeros_like(peak).index_add(0, group, (values - peak[group]).exp())
    return total.log() + peak
