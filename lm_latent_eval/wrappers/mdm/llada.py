r"""``convention=llada``: the loop that LLaDA's published numbers are from.

    batches of B = 32:  l_b = 1 + (round(l + b L / B) - 1) mod L,  b = 0..B-1
    mean over N / B batches of
        (1 / B) sum_b (L / l_b) sum_{i in M_b} log p(x_i | x_{not M_b})

with l uniform on 1..L, M_b a uniform set of l_b places, and round to even. It is the
bound of ``bound.py`` but for two things: counts that rounding favours come more often
where L does not divide B, and the mask has its share of the softmax (of which
``MaskedReader.mask_is_word`` takes care). So it bounds nothing.

Symbols: L -> ``length``; N -> ``num_samples``.
Source: eval_llada.py of github.com/ML-GSAI/LLaDA at b7e6c35 (``_forward_process``,
``get_loglikelihood``), in our own words.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm_latent_eval.wrappers.mdm.bound import Bounded, Drawn
from lm_latent_eval.wrappers.mdm.predictions import Requests

BATCH = 32
"""Masked texts whose counts are spread together, as the program has it."""


def counts(length: int, batch: int, first: int) -> Tensor:
    """Return the mask counts of a batch, (B,).

    Example:
        >>> counts(4, 8, 1)  # 2 and 4 come three times as often as 1 and 3
        tensor([1, 2, 2, 2, 3, 4, 4, 4])
    """
    steps = torch.linspace(float(first), first + (batch - 1) * (length / batch), batch)
    return (steps.round().long() - 1) % length + 1


def check(num_samples: int) -> None:
    """Refuse what the program refuses.

    Raises:
        ValueError: If the samples are no whole number of batches.
    """
    if num_samples % min(BATCH, num_samples):
        raise ValueError(
            f"convention=llada: num_samples={num_samples} are no whole number of its "
            f"batches of {BATCH}"
        )


def log_p_llada(length: int, num_samples: int, drawn: Drawn) -> Requests[Bounded]:
    """Do as the loop does.

    Args:
        length: L.
        num_samples: N.
        drawn: Random numbers of one text.
    """
    check(num_samples)
    size = min(BATCH, num_samples)
    chosen, shares = [], []
    for batch in range(num_samples // size):
        numbers = drawn(batch, 1 + size * length)
        number = counts(length, size, 1 + int(float(numbers[0]) * length))
        ranks = numbers[1:].view(size, length).argsort(1).argsort(1)
        chosen.append(ranks < number[:, None])
        shares.append(length / number.double())
    log_p = (yield torch.cat(chosen)).log_p.sum(-1) * torch.cat(shares)
    values = tuple(float(part.mean()) for part in log_p.split(size))
    return Bounded(math.fsum(values) / len(values), values)
