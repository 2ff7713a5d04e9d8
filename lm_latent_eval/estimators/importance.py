r"""Estimates of log p(x) from K log-weights: importance sampling and beams.

    z_k ~ q(z | x),    w_k = p(x, z_k) / q(z_k | x),    k = 1..K

The estimate, its error and effective sample size; the mass of a beam; how the estimate
changes with K; and the K that reaches a target error, from a pilot run.

Symbols: log w_k -> ``log_w[..., k - 1]``; K -> ``num_samples``. Every function takes
log-weights in nats of any float dtype and computes and answers in float64, because
a document's log-weights are of the order of -10,000 and float32 keeps 1e-3 of that.
Source: Logan et al. (2020), section 2, equations 2 to 4, and section 4; Owen (2013),
chapter 9.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights


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


def influences(log_w: Tensor) -> Tensor:
    r"""Return the influence of each weight on log p-hat, to first order.

    .. math:: \log\hat p + \frac{w_k}{\bar w} - 1

    Their mean is log p-hat, and the spread of their differences between two estimates
    from the same draws is the error of the difference (delta method).

    Args:
        log_w: Log-weights in nats, shape ``(K,)``, of which one is above ``-inf``.

    Returns:
        Nats, shape ``(K,)``, float64.

    Example:
        >>> influences(torch.tensor([0.2, 0.4]).log())
        tensor([-1.5373, -0.8706], dtype=torch.float64)
    """
    found = log_evidence(log_w)
    return found + torch.expm1(in_float64(log_w) - found)


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
    return (relative_variance(log_w) / log_w.shape[-1]).sqrt()


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


def stderr_of_log_normal(variance: Tensor, num_samples: int) -> float:
    r"""Return the standard error of the log-evidence of K log-normal weights.

    .. math:: \mathrm{se}^2 = \log\Bigl(1 + \frac{e^{s^2} - 1}{K}\Bigr)

    Args:
        variance: s^2, of the log-weights, square nats, shape ``()``.
        num_samples: K.

    Returns:
        Nats.

    Example:
        >>> round(stderr_of_log_normal(torch.tensor(1.0), 5), 4)
        0.5435

    Reference:
        Fenton (1960), for the sum of log-normal variables.
    """
    others = torch.full_like(variance, num_samples - 1).log()
    # log((e^v + K - 1) / K), which is 0 or more but for rounding.
    log_mean = torch.logaddexp(variance, others) - math.log(num_samples)
    return log_mean.clamp_min(0).sqrt().item()


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


def _scaled_weights(log_w: Tensor) -> Tensor:
    """Return the weights over their largest, float64; all 0 where all are zero."""
    log_w = in_float64(log_w)
    largest = log_w.amax(-1, keepdim=True)
    return (log_w - largest.masked_fill(largest.isneginf(), 0)).exp()


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


WORTH_LESS = 0.2
"""Monte Carlo error, as a share of that over texts, that more samples hardly improve:
errors add in squares."""


def enough_samples(num_samples: int, draws_stderr: float, texts_stderr: float) -> int:
    r"""Return the K beyond which more samples barely reduce a corpus's error.

    .. math:: K' = K \Bigl(\frac{\mathrm{se}_\text{draws}}
        {0.2\,\mathrm{se}_\text{texts}}\Bigr)^2

    Args:
        num_samples: K.
        draws_stderr: Monte Carlo error of the corpus with K samples a text.
        texts_stderr: Its error over texts, in the same unit.

    Raises:
        ValueError: If the errors are not positive and finite.

    Example:
        >>> enough_samples(100, draws_stderr=0.1, texts_stderr=0.2)
        625
    """
    if not (0 < draws_stderr < math.inf and 0 < texts_stderr < math.inf):
        raise ValueError(
            f"errors must be positive and finite; got {draws_stderr}, {texts_stderr}"
        )
    rounding = 1 - 1e-12
    wanted = (draws_stderr / texts_stderr / WORTH_LESS) ** 2
    return max(1, math.ceil(num_samples * wanted * rounding))
