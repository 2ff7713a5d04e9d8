r"""A lower bound of log p by random masks, for any length.

    ELBO = E[log p(x | sigma)] = E[(L / l) sum_{i in M} log p(x_i | x_{not M})]
        <= log E[p(x | sigma)] = log p(x)

with l uniform on 1..L and M a uniform set of l masked places.

Symbols: L -> ``length``; l -> mask counts; N -> ``num_samples``, the passes.
Source: Ou et al. (2024), "Your absorbing discrete diffusion secretly models the
conditional distributions of clean data"; Nie et al. (2025), "Large language diffusion
models" (LLaDA). Systematic counts and balanced places are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.wrappers.mdm.orders import subsets
from lm_latent_eval.wrappers.mdm.predictions import Requests

REPLICATES = 8
"""Independent u among which passes are shared out: as few as still tell an error."""

Drawn = Callable[[int, int], Tensor]
"""(replicate r, n) -> n numbers of (0, 1), float64, always the same first ones."""


@dataclass(frozen=True)
class Bounded:
    """A bound of log p, or an estimate of one."""

    value: float
    """Nats."""
    replicates: tuple[float, ...]
    """Independent unbiased estimates, whose mean it is."""
    drawn: bool = True
    """Whether chance is in it."""

    @property
    def stderr(self) -> float | None:
        """Of the value, nats; None of fewer than ``REPLICATES`` replicates."""
        if not self.drawn:
            return 0.0
        if len(self.replicates) < REPLICATES:
            return None
        values = torch.tensor(self.replicates, dtype=torch.float64)
        return float(values.std() / math.sqrt(len(values)))


def groups(num_samples: int) -> int:
    """Return how many independent estimates so many draws are shared out among."""
    return REPLICATES if num_samples >= REPLICATES else 1


def mask_counts(length: int, passes: int, u: float) -> Tensor:
    r"""Return systematic mask counts, (N,).

    .. math:: l_k = 1 + \lfloor L (k + u) / N \rfloor, \qquad k = 0..N-1

    Over u in (0, 1) their average share of every count is 1/L.

    Example:
        >>> mask_counts(4, 8, 0.5)
        tensor([1, 1, 2, 2, 3, 3, 4, 4])
        >>> mask_counts(5, 2, 0.9)
        tensor([3, 5])
    """
    k = torch.arange(passes, dtype=torch.float64)
    return (length * (k + u) / passes).floor().long().clamp(max=length - 1) + 1


def masks(length: int, passes: int, numbers: Tensor) -> Tensor:
    """Draw N sets of masked places, (N, L).

    The counts are systematic. The places of each count are uniform, and balanced
    between counts: places are put in one random order, and each set begins in it where
    the one before ended, so that all places are masked equally often, but for one.

    Args:
        length: L.
        passes: N.
        numbers: 1 + L random numbers in (0, 1).
    """
    counts = mask_counts(length, passes, float(numbers[0]))
    order = numbers[1:].argsort()
    begin = counts.cumsum(0) - counts
    step = torch.arange(length)
    # Where each place of the random order is in it, counted from the set's begin.
    after = (step - begin[:, None]) % length
    chosen = torch.zeros(passes, length, dtype=torch.bool)
    chosen[:, order] = after < counts[:, None]
    return chosen


def elbo(length: int, num_samples: int, drawn: Drawn) -> Requests[Bounded]:
    """Estimate the bound by N passes, or find it where there are no more sets.

    Passes are shared out among replicates, each with its own u and its own masks. Up to
    N passes could read every set, and do then: nothing is drawn.

    Args:
        length: L.
        num_samples: N.
        drawn: Random numbers of one text.
    """
    if 2**length - 1 <= num_samples:
        value = yield from _every_set(length)
        return Bounded(value, (value,), drawn=False)
    replicates = groups(num_samples)
    passes = [
        num_samples // replicates + (r < num_samples % replicates)
        for r in range(replicates)
    ]
    chosen = [masks(length, n, drawn(r, 1 + length)) for r, n in enumerate(passes)]
    masked = torch.cat(chosen)
    log_p = (yield masked).log_p.sum(-1) * length / masked.sum(-1)
    values = tuple(float(part.mean()) for part in log_p.split(passes))
    return Bounded(math.fsum(values) / replicates, values)


def _every_set(length: int) -> Requests[float]:
    """Average over all sets of masks, each count as often as any other."""
    total = 0.0
    for count in range(1, length + 1):
        masked = subsets(length, count)
        total += float((yield masked).log_p.sum(-1).mean()) / count
    return total
