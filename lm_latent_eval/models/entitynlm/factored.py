r"""Distributions over words whose logits are sums of a position and a context term.

.. math::
    \log p_{tg}(v) = P_{tv} + Q_{gv} - \log \sum_u e^{P_{tu}} \, e^{Q_{gu}}

The sums of N places under M contexts are a product of two matrices: N + M rows of
exponentials instead of N M.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_softmax_at(column: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return one log-probability a place under each context.

    Exponentials are taken of scores less the largest of their row. Those that become
    too small for their type are lost: V of them, each less than its least normal
    number. A sum that they could change by more than its last digit is not taken.

    Args:
        column: v of each place, (N,).
        p: Scores of the places, (N, V), nats; ``-inf`` where nothing is possible.
        q: Scores of the contexts, (M, V), nats.

    Returns:
        Nats, (N, M); NaN where the sum is not taken.

    Example:
        >>> p = torch.tensor([[60.0, -60.0]])
        >>> q = torch.tensor([[0.0, 1.0], [-60.0, 60.0]])
        >>> log_softmax_at(torch.tensor([0]), p, q)
        tensor([[0., nan]])
    """
    shift_p, shift_q = p.amax(1, keepdim=True), q.amax(1, keepdim=True)
    sums = (p - shift_p).exp_() @ (q - shift_q).exp_().T
    number = torch.finfo(p.dtype)
    sums = sums.masked_fill(sums < p.shape[1] * number.tiny / number.eps, torch.nan)
    at = p.gather(1, column[:, None]) + q.T[column]
    return at - (sums.log() + shift_p + shift_q.T)
