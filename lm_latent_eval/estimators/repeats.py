r"""Several answers to one question: mean of k, and pass@k.

.. math:: \text{pass@}k = 1 - \binom{n-c}{k} \Big/ \binom{n}{k}

of n answers of which c are right: the unbiased estimate of the probability that one of
k is right.

Source: Chen et al. (2021), section 2.1.
"""

from __future__ import annotations

import numpy as np


def pass_at(k: int, right: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Estimate pass@k of each question.

    Args:
        k: At least 1, and at most the answers of any question.
        right: Right answers c, shape ``(N,)``.
        number: Answers n, shape ``(N,)``.

    Raises:
        ValueError: If k is not among them.

    Example:
        >>> pass_at(2, np.array([0, 1, 3]), np.array([4, 4, 4]))
        array([0. , 0.5, 1. ])
    """
    if not 1 <= k <= number.min():
        raise ValueError(
            f"pass@{k} needs {k} answers to each question; there are {number.min()}"
        )
    wrong = number - right
    missed = np.ones(len(right))
    for turn in range(k):
        missed = missed * np.maximum(wrong - turn, 0) / (number - turn)
    found: np.ndarray = 1 - missed
    return found


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
