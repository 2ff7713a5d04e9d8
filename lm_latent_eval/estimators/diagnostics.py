r"""Diagnostics of draws: Pareto k of the weights, and the missing mass.

Pareto k is the tail index of the weights that were drawn. The missing mass is the share
of p(x) that draws are likely not to have met at all, judged by a search.
"""

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


TIE = 2.0**-10
"""Nats. Weights as near as this are in the order in which the search has them: where q
is nearly right all are, and rounding would order them otherwise in every batch."""

MOST_UNSEEN = 0.99
"""Share of p(x) that draws may be expected to miss where an error is still given."""
LITTLE, MOST_OF_LITTLE = 0.1, 0.5
"""Share of p(x) below which a search may not stand for the rest, and the largest u that
is accepted then."""
LARGEST = 0.5
"""The largest error of a logarithm, nats, that the delta method can be asked for."""


def missing_mass(
    log_p: Tensor, log_w: Tensor, num_draws: int, log_evidence: float
) -> float:
    r"""Return the share of p(x) that draws are likely to miss, judged by a search.

    A search finds distinct latents B, of which p and q are both known. Order them by
    their weight w = p(x, z) / q(z | x), the largest first, and let F_j be the share of
    p(B) on the first j of them, G_j what q gives to the like of them in all of p(x).
    N draws meet none of these with probability exp(-N G_j), and then miss a share F_j:

    .. math:: u = \max_j F_j \exp(-N G_j / 2)

    the root mean square of that loss for the j for which it is worst. It does not grow
    beyond any bound, as the variance of the weights does where q is nearly zero, and
    it does not need a draw: where q cannot see what p pays for, u is near 1, whatever
    the draws say of themselves.

    Args:
        log_p: log p(x, z) of the latents found, distinct, nats, shape ``(W,)``;
            ``-inf`` in places that are not used.
        log_w: Their log-weights log p(x, z) - log q(z | x), nats, shape ``(W,)``;
            ``+inf`` where q is zero.
        num_draws: N.
        log_evidence: Estimated log p(x), nats. What was found stands for the rest:
            where it is a hundredth of p(x), q gives a hundred times as much to its
            like.

    Returns:
        From 0 to 1; 1 if nothing was found: then nothing is known.

    Raises:
        TypeError: If ``log_p`` is not a floating-point tensor.
        ValueError: If a probability is NaN or ``+inf``.

    Example:
        Half of p lies where ten draws never come.

        >>> import torch
        >>> log_p = torch.tensor([0.25, 0.25]).log()
        >>> log_q = torch.tensor([0.5, 1e-9]).log()
        >>> round(missing_mass(log_p, log_p - log_q, 10, log_evidence=-0.7), 3)
        0.5
        >>> nothing = torch.tensor([-torch.inf])
        >>> missing_mass(nothing, nothing, 10, log_evidence=-0.7)
        1.0

    Reference:
        Ours. The error that draws cannot show is that of Chatterjee and Diaconis
        (2018): N below exp(KL(p(z|x) || q)).
    """
    checked_weights(log_p)
    found = ~log_p.isneginf()
    if not found.any():
        return 1.0
    steps = (in_float64(log_w[found]) / TIE).round()
    order = steps.argsort(descending=True, stable=True).to(log_w.device)
    log_p, log_w = in_float64(log_p[found][order]), in_float64(log_w[found][order])
    share = log_p.softmax(0).cumsum(0)
    log_found = min(log_p.logsumexp(0).item() - log_evidence, 0.0)
    like = (log_p - log_w - log_found).logcumsumexp(0).exp()
    return min((share * (-num_draws / 2 * like).exp()).max().item(), 1.0)
