r"""Pareto k: the tail index of the weights that were drawn."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights

MIN_PARETO_SAMPLES = 30
"""Fewest positive weights to whose largest fifth, six, a distribution is fitted."""

RELIABLE_PARETO_K = 0.7
"""Above it, neither an estimate nor its error can be relied on."""

EQUAL_LOG_WEIGHTS = 1e-9
"""Nats within which the weights of a tail count as equal (rounding of float64)."""

WIDEST_TAIL = 700.0
"""Nats that a tail may span for its weights to be positive float64 numbers."""


def pareto_k(log_w: Tensor) -> Tensor:
    r"""Return the shape of a generalized Pareto fit to the largest weights.

    Of K' positive weights the largest min(K'/5, 3 sqrt(K')) are the tail; above its
    threshold u it is fitted by

    .. math:: P(w - u > y) = (1 + k y / \sigma)^{-1/k}

    with the weakly informative prior of Pareto smoothed importance sampling, which
    pulls a short tail's k towards 0.5. Moments of the weights exist below order 1/k:
    k < 0.5 means a finite variance; with k > 0.7 neither the estimate nor its
    standard error should be believed; with k > 1 even the mean is infinite on the
    evidence of the sample. Zero weights are left out: they
    do not change a tail's shape. Where weights tie with the threshold (discrete
    latents drawn more than once) u is the next smaller weight, or 0.

    There is always an answer, never NaN:

    - ``inf``, unreliable: fewer than ``MIN_PARETO_SAMPLES`` = 30 positive weights, so
      fewer than six in the tail, or a tail of more than ``WIDEST_TAIL`` = 700 nats, of
      which float64 holds only the largest weights;
    - ``-inf``, bounded: all weights of the tail are equal (to ``EQUAL_LOG_WEIGHTS``),
      as with the exact posterior as proposal. It cannot speak of latents that q
      never proposes; nothing computed from weights can.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``.

    Returns:
        A pure number, shape ``(...)``, float64.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
        >>> pareto_k(-0.7 * uniform.log())  # P(w > y) = y^(-1 / 0.7)
        tensor(0.6..., dtype=torch.float64)
        >>> pareto_k(torch.zeros(10)), pareto_k(torch.zeros(100))
        (tensor(inf, dtype=torch.float64), tensor(-inf, dtype=torch.float64))

    Reference:
        Vehtari et al. (2024), "Pareto smoothed importance sampling".
    """
    num_samples = checked_weights(log_w)
    rows = in_float64(log_w.detach()).cpu().reshape(-1, num_samples)
    shapes = torch.tensor([_pareto_k(row) for row in rows], dtype=torch.float64)
    return shapes.reshape(log_w.shape[:-1]).to(log_w.device)


def _pareto_k(log_w: Tensor) -> float:
    """Return the Pareto k of one row of checked float64 log-weights, shape (K,)."""
    ordered = np.sort(log_w[~log_w.isneginf()].numpy())
    num_positive = len(ordered)
    if num_positive < MIN_PARETO_SAMPLES:
        return math.inf
    ordered -= ordered[-1]
    wide = 3 * math.sqrt(num_positive) if num_positive > 225 else num_positive / 5
    body, tail = np.split(ordered, [-math.floor(wide)])
    spread = tail[-1] - tail[0]
    if spread <= EQUAL_LOG_WEIGHTS:
        return -math.inf
    if spread > WIDEST_TAIL:
        return math.inf
    below = body[body < tail[0]]
    threshold = np.exp(below[-1]) if len(below) else 0.0
    with np.errstate(all="ignore"):
        shape = _generalized_pareto_shape(np.exp(tail) - threshold)
    return shape if math.isfinite(shape) else math.inf


def _generalized_pareto_shape(excess: NDArray[np.float64]) -> float:
    r"""Fit k to what weights have above a threshold, in increasing order, (n,).

    With b = -k / sigma the likelihood has its maximum over k at the mean of
    log(1 - b y), so b alone is averaged, over a grid, in proportion to that maximum.
    Ten observations of k = 1/2 are the prior.

    Reference:
        Zhang and Stephens (2009); Vehtari et al. (2024), appendix G.
    """
    n = len(excess)
    grid = 30 + math.isqrt(n)
    quantile = excess[math.floor(n / 4 + 0.5) - 1]
    b = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    b = b / (3 * quantile) + 1 / excess[-1]
    k = np.log1p(-b[:, None] * excess).mean(-1)
    log_likelihood = n * (np.log(-b / k) - k - 1)
    weight = np.exp(log_likelihood - log_likelihood.max())
    weight[weight < 10 * np.finfo(float).eps * weight.sum()] = 0.0
    mean = (b * weight).sum() / weight.sum()
    shape = np.log1p(-mean * excess).mean()
    return float((n * shape + 10 * 0.5) / (n + 10))
