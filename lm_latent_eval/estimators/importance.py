r"""Importance sampling: what K log-weights of one input say about log p(x).

    z_k ~ q(z | x),    w_k = p(x, z_k) / q(z_k | x),    k = 1..K

Symbols: log w_k -> ``log_w[..., k - 1]``; K -> ``num_samples``. Every function takes
log-weights in nats of any float dtype and computes and answers in float64, because
a document's log-weights are of the order of -10,000 and float32 keeps 1e-3 of that.
Source: Logan et al. (2020), section 2, equations 2 to 4; Owen (2013), chapter 9.
"""

import math
from collections.abc import Callable, Sequence
from typing import SupportsFloat

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64

MIN_TAIL_SAMPLES = 6
"""Fewest tail weights to which a generalized Pareto distribution is fitted."""

MIN_PARETO_SAMPLES = 30
"""Fewest positive weights with that many in the tail, their largest fifth."""

EQUAL_LOG_WEIGHTS = 1e-9
"""Nats within which the weights of a tail count as equal (rounding of float64)."""

APART = 1e-12
"""Nats between weights of a tail that were equal: far below what moves a fit."""

WIDEST_TAIL = 700.0
"""Nats that a tail may span for its weights to be positive float64 numbers."""


def checked_floating(value: object, name: str) -> Tensor:
    """Return ``value``, or raise if it is not a real floating-point tensor.

    Args:
        value: What the caller passed.
        name: What the caller calls it.

    Returns:
        The same tensor.

    Raises:
        TypeError: If it is anything else.

    Example:
        >>> checked_floating([0.5], "log_w")
        Traceback (most recent call last):
        ...
        TypeError: log_w must be a floating-point tensor; got list
    """
    if not isinstance(value, Tensor):
        found = type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor; got {found}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor; got {value.dtype}")
    return value


def checked_weights(log_w: Tensor) -> int:
    """Return K, or raise with the first offending index.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``; ``-inf`` is a weight of zero.

    Returns:
        K, the size of the last dimension.

    Raises:
        TypeError: If ``log_w`` is not a tensor of a real floating-point dtype.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> checked_weights(torch.zeros(2, 3))
        3
        >>> checked_weights(torch.tensor([0.0, torch.inf]))
        Traceback (most recent call last):
        ...
        ValueError: log_w[1] is inf; expected finite or -inf. Did the proposal return...
    """
    checked_floating(log_w, "log_w")
    if log_w.ndim == 0 or log_w.shape[-1] == 0:
        raise ValueError(
            f"log_w must have shape (..., K) with K >= 1; got {tuple(log_w.shape)}"
        )
    bad = log_w.isnan() | log_w.isposinf()
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"log_w{list(where)} is {log_w[where].item()}; "
            "expected finite or -inf. Did the proposal return log q = -inf?"
        )
    return int(log_w.shape[-1])


def log_evidence(log_w: Tensor) -> Tensor:
    r"""Estimate the log-evidence log p(x) by importance sampling.

    .. math::
        \log\hat p(x) = \log \frac{1}{K} \sum_{k=1}^{K} w_k,
        \qquad w_k = \frac{p(x, z_k)}{q(z_k \mid x)}, \quad z_k \sim q(\cdot \mid x)

    :math:`\hat p(x)` is unbiased if q > 0 wherever p > 0 (where q misses some of p it
    is biased downwards); its logarithm is biased downwards (Jensen), to first order
    by half the variance that :func:`stderr` estimates.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``; ``-inf`` is a weight of zero.

    Returns:
        Nats, shape ``(...)``, float64; ``-inf`` where all K weights are zero.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> log_evidence(torch.tensor([0.2, 0.4]).log()).exp()
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Logan et al. (2020), section 2, equations 2 to 4.
    """
    num_samples = checked_weights(log_w)
    return in_float64(log_w).logsumexp(-1) - math.log(num_samples)


def relative_variance(log_w: Tensor) -> Tensor:
    r"""Return the variance of the weights over their squared mean.

    .. math:: \frac{1}{K} \sum_{k=1}^{K} \Bigl(\frac{w_k}{\bar w} - 1\Bigr)^2

    It divides by K, so it lies in [0, K - 1]: K samples cannot show a larger one, and
    a heavy tail not yet sampled is underestimated.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``.

    Returns:
        A pure number, shape ``(...)``, float64; ``inf`` (unknown) where all weights
        are zero, and everywhere if K is 1, since one draw shows no spread.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> relative_variance(torch.tensor([1.0, 3.0]).log())  # 1 / 2^2
        tensor(0.2500, dtype=torch.float64)
    """
    num_samples = checked_weights(log_w)
    weights = _scaled_weights(log_w)
    ratio = weights / weights.mean(-1, keepdim=True)
    variance = (ratio - 1).square().mean(-1)
    unknown = (weights.sum(-1) == 0) | (num_samples == 1)
    return variance.masked_fill(unknown, math.inf)


def stderr(log_w: Tensor) -> Tensor:
    r"""Return the standard error of the log-evidence, by the delta method.

    .. math::
        \mathrm{se}(\log\hat p)^2 = \frac{1}{K}\,\widehat{\mathrm{Var}}(w / \bar w)
        = \frac{1}{\mathrm{ESS}} - \frac{1}{K}

    Below 1 by construction, however bad the proposal: biased downwards where the
    tail of the weights is heavy. Let :func:`effective_sample_size` and
    :func:`pareto_k` say whether it can be believed.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``.

    Returns:
        Nats, shape ``(...)``, float64; ``inf`` (unknown) where all weights are zero,
        and everywhere if K is 1: there the formula says 0, which one draw of an
        unknown distribution cannot mean.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> stderr(torch.tensor([1.0, 3.0]).log())  # sqrt(1 / 1.6 - 1 / 2)
        tensor(0.3536, dtype=torch.float64)

    Reference:
        Owen (2013), chapter 9, for the variance of the mean; its logarithm is ours.
    """
    num_samples = checked_weights(log_w)
    return (relative_variance(log_w) / num_samples).sqrt()


def effective_sample_size(log_w: Tensor) -> Tensor:
    r"""Return Kish's effective sample size of the weights.

    .. math::
        \mathrm{ESS} = \frac{\bigl(\sum_k w_k\bigr)^2}{\sum_k w_k^2} \in [1, K]

    Biased upwards where the tail of the weights is heavy: large weights that were
    never drawn do not lower it.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``.

    Returns:
        A number of samples, shape ``(...)``, float64; 0 where all weights are zero.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> effective_sample_size(torch.tensor([1.0, 3.0]).log())  # 4^2 / (1 + 9)
        tensor(1.6000, dtype=torch.float64)

    Reference:
        Kish (1965); Owen (2013), chapter 9, on diagnostics.
    """
    num_samples = checked_weights(log_w)
    weights = _scaled_weights(log_w)
    total = weights.sum(-1)
    size = total.square() / weights.square().sum(-1)
    return size.clamp(1, num_samples).masked_fill(total == 0, 0)


def pareto_k(log_w: Tensor) -> Tensor:
    r"""Return the shape of a generalized Pareto fit to the largest weights.

    Of K' positive weights the largest min(K'/5, 3 sqrt(K')) are the tail; above its
    threshold u it is fitted by

    .. math:: P(w - u > y) = (1 + k y / \sigma)^{-1/k}

    with the weakly informative prior of Pareto smoothed importance sampling, which
    pulls a short tail's k towards 0.5. Moments of the weights exist below order 1/k:
    k < 0.5 means a finite variance; with k > 0.7 neither the estimate nor its
    standard error should be believed; with k > 1 even the mean is infinite on the
    evidence of the sample. Computed by arviz-stats. Zero weights are left out: they
    do not change a tail's shape. Where weights tie with the threshold (discrete
    latents drawn more than once) u is the next smaller weight, or 0.

    There is always an answer, never NaN:

    - ``inf``, unreliable: fewer than ``MIN_PARETO_SAMPLES`` = 30 positive weights, so
      fewer than ``MIN_TAIL_SAMPLES`` = 6 in the tail, or a tail of more than
      ``WIDEST_TAIL`` = 700 nats, of which float64 holds only the largest weights;
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


def log_grid(num_samples: int) -> tuple[int, ...]:
    """Return the sizes 1, 2, 5, 10, 20, 50, ... below K, and K itself.

    Args:
        num_samples: K, at least 1.

    Returns:
        Increasing sizes; the last one is K.

    Raises:
        ValueError: If K is below 1.

    Example:
        >>> log_grid(100)
        (1, 2, 5, 10, 20, 50, 100)
        >>> log_grid(7)
        (1, 2, 5, 7)
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {num_samples}")
    decades = range(len(str(num_samples)))
    steps = (lead * 10**decade for decade in decades for lead in (1, 2, 5))
    return (*(step for step in steps if step < num_samples), num_samples)


def sample_size_curve(log_w: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    r"""Estimate the log-evidence from the first k samples, for several k.

    .. math:: \log\hat p_k(x) = \log \frac{1}{k} \sum_{j=1}^{k} w_j

    The estimates are nested, hence dependent; each is biased downwards as
    :func:`log_evidence` is, the less the larger k, so the curve rises in expectation
    (its perplexity falls). Choosing the k at which it looks best, or stopping there,
    voids the bound.

    Args:
        log_w: Log-weights in nats in the order drawn, shape ``(..., K)``.
        sizes: The k's, each in 1..K; :func:`log_grid` of K by default.

    Returns:
        Nats, shape ``(..., len(sizes))``, float64; ``-inf`` where the first k weights
        are all zero.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If a size is outside 1..K, K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> sample_size_curve(torch.tensor([0.2, 0.4, 0.6]).log(), [1, 3]).exp()
        tensor([0.2000, 0.4000], dtype=torch.float64)

    Reference:
        Logan et al. (2020), section 4, figures 2 and 3 (as perplexities).
    """
    num_samples = checked_weights(log_w)
    sizes = log_grid(num_samples) if sizes is None else sizes
    for index, size in enumerate(sizes):
        if not 1 <= size <= num_samples:
            raise ValueError(
                f"sizes[{index}] is {size}; expected 1 to {num_samples}, "
                "the number of samples"
            )
    drawn = torch.tensor(sizes, dtype=torch.long, device=log_w.device)
    total = in_float64(log_w).logcumsumexp(-1)
    return total[..., drawn - 1] - in_float64(drawn).log()


def _scaled_weights(log_w: Tensor) -> Tensor:
    """Return the weights over their largest, float64; all 0 where all are zero."""
    log_w = in_float64(log_w)
    largest = log_w.amax(-1, keepdim=True)
    return (log_w - largest.masked_fill(largest.isneginf(), 0)).exp()


def _pareto_k(log_w: Tensor) -> float:
    """Return the Pareto k of one row of checked float64 log-weights, shape (K,)."""
    from arviz_stats.base.array import array_stats  # a second to import: on first use

    smooth: Callable[..., tuple[object, SupportsFloat]] = array_stats.psislw

    ordered = np.sort(log_w[~log_w.isneginf()].numpy())
    num_positive = len(ordered)
    if num_positive < MIN_PARETO_SAMPLES:
        return math.inf
    ordered -= ordered[-1]
    # the size that arviz-stats gives the tail: see the test that compares the two
    wide = 3 * math.sqrt(num_positive) if num_positive > 225 else num_positive / 5
    body, tail = np.split(ordered, [-math.floor(wide)])
    spread = tail[-1] - tail[0]
    if spread <= EQUAL_LOG_WEIGHTS:
        return -math.inf
    if spread > WIDEST_TAIL:
        return math.inf

    below = body[body < tail[0]]
    threshold = below[-1] if len(below) else -math.inf
    if not np.diff(tail).all():  # newer arviz-stats refuse a low quarter that is equal
        tail = tail + APART * np.arange(len(tail))
    untied = np.concatenate([np.minimum(body, threshold), tail])
    with np.errstate(all="ignore"):
        # it expects log-likelihoods, whose negatives are the log-weights
        shape = float(smooth(-untied)[1])
    return shape if math.isfinite(shape) else math.inf


def log_ratio_stderr(log_w: Tensor, log_w_prefix: Tensor) -> Tensor:
    r"""Monte Carlo standard error of a ratio of two estimates from the same draws.

    By the delta method, for :math:`\log \sum_k w_k - \log \sum_k v_k`,

    .. math::
        \mathrm{se}^2 = \sum_{k=1}^{K}
        \Bigl(\frac{w_k}{\sum_j w_j} - \frac{v_k}{\sum_j v_j}\Bigr)^2

    Args:
        log_w: Log-weights of a prefix with its continuation, nats, shape ``(..., K)``.
        log_w_prefix: Log-weights of the prefix under the same latents, same shape.

    Returns:
        Nats, shape ``(...)``; ``inf`` for one draw, or where all weights are zero.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If the shapes differ, K is 0, or a weight is NaN or ``+inf``.

    Example:
        >>> v = torch.tensor([0.2, 0.4]).log()
        >>> error = log_ratio_stderr(v + 3, v)  # all draws agree on the continuation
        >>> round(error.item(), 6)
        0.0
    """
    num_samples = checked_weights(log_w)
    checked_weights(log_w_prefix)
    if log_w.shape != log_w_prefix.shape:
        raise ValueError(
            f"log_w has shape {tuple(log_w.shape)} but log_w_prefix "
            f"{tuple(log_w_prefix.shape)}: the same draws have the same shape"
        )
    share = in_float64(log_w).softmax(-1) - in_float64(log_w_prefix).softmax(-1)
    error = share.square().sum(-1).sqrt()
    unknown = (log_w == -torch.inf).all(-1) | (log_w_prefix == -torch.inf).all(-1)
    if num_samples == 1:
        unknown = torch.ones_like(unknown)
    return error.masked_fill(unknown, torch.inf)
