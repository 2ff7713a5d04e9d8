"""Choices among answers to a question: ties, and Monte Carlo errors of choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit  # all of scipy.stats takes half a second
from torch import Tensor

from lm_latent_eval.estimators.standard_errors import CONFIDENCE

ROUNDING = 2.0**-17
"""Nats a token, 7.6e-6, within which scores tie: four units in the last place of a
float32 from 16 to 32 nats. A score is a sum of one number a token, rounded otherwise in
another batch, which was seen to move a token of the models here by a tenth of it."""


def tied(log_p: Sequence[float], num_tokens: Sequence[int]) -> list[int]:
    """Return the indices of the best scores, those that tie but for rounding included.

    Args:
        log_p: Of each option, nats.
        num_tokens: How many tokens each score is a sum over; the longest one's rounding
            is that of all.

    Example:
        >>> tied([-3.0, -2.0, -2.00001], [5, 5, 5])
        [1, 2]
        >>> tied([-3.0, -2.0, -2.001], [5, 5, 5])
        [1]
    """
    within = ROUNDING * max(1, *num_tokens)
    best = max(log_p)
    return [n for n, one in enumerate(log_p) if one == best or best - one <= within]


def first_of_best(log_p: Tensor) -> Tensor:
    """Return the first place of each row whose score ties with the best.

    Args:
        log_p: Nats of one token, shape ``(..., N)``.

    Example:
        >>> import torch
        >>> first_of_best(torch.tensor([[-2.0, -1.000001, -1.0], [-1.0, -0.5, -3.0]]))
        tensor([1, 1])
    """
    best = log_p.amax(-1, keepdim=True)
    return (log_p >= best - ROUNDING).int().argmax(-1)


def is_undecided(options: Sequence[Sequence[float]]) -> bool:
    r"""Whether the best option is within Monte Carlo error of another one, at 95 %.

    Of the best option's replicates :math:`a_r` and another's :math:`b_r`, from the same
    draws, :math:`\bar d = \mathrm{mean}(a_r - b_r)` is told from 0 if it exceeds its
    standard error times Student's t of R - 1 degrees of freedom.

    Args:
        options: Of each option R replicates of its log-likelihood, nats, or its one
            log-likelihood where nothing was drawn.

    Raises:
        ValueError: If there is no option or one without replicates, or not equally many
            of each that was drawn.

    Example:
        >>> is_undecided([[-1.0, -1.1, -0.9], [-1.2, -1.3, -1.1]])  # the draws agree
        False
        >>> is_undecided([[-1.0, -1.6, -0.4], [-1.2, -0.6, -1.8]])
        True
    """
    sizes = {len(option) for option in options}
    if not sizes or 0 in sizes or len(sizes - {1}) > 1:
        raise ValueError("expected as many replicates of every option, and at least 1")
    if (number := max(sizes)) == 1:
        return False
    wide = stdtrit(number - 1, (1 + CONFIDENCE) / 2)
    rows = [[*option] * (number // len(option)) for option in options]
    best, *others = sorted(rows, key=fmean, reverse=True)
    for other in others:
        gaps = [a - b for a, b in zip(best, other, strict=True)]
        if fmean(gaps) < wide * stdev(gaps) / math.sqrt(number):
            return True
    return False


def repeat_stderr(scores: list[np.ndarray]) -> float:
    """Return the part of the error of a mean over questions that repeats cause.

    It is what more answers to these questions would take away.

    Args:
        scores: Of each question, its answers' scores; questions with one answer tell
            nothing, and are taken to vary as the others do on average.

    Example:
        >>> round(repeat_stderr([np.array([0.0, 1.0]), np.array([1.0, 1.0])]), 4)
        0.25
    """
    sizes = np.array([len(each) for each in scores])
    known = np.array([each.var(ddof=1) for each in scores if len(each) > 1])
    if not len(known):
        return 0.0
    variances = np.full(len(scores), known.mean())
    variances[sizes > 1] = known
    return float(np.sqrt((variances / sizes).sum())) / len(scores)
