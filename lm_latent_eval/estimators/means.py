"""Standard errors of means, and of ratios of means, over independent units."""

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_floating


def mean_stderr(values: Tensor) -> Tensor:
    r"""Return the standard error of a mean over independent replicates.

    .. math:: \mathrm{se}^2 = \frac{1}{R (R - 1)} \sum_{r=1}^{R} (y_r - \bar y)^2

    Of contrastive entropies, a replicate is the whole text distorted anew: the error
    speaks of the noise alone.

    Args:
        values: One number a replicate, shape ``(..., R)``.

    Returns:
        Their unit, shape ``(...)``, float64; ``inf`` (unknown) for one replicate.

    Raises:
        TypeError: If ``values`` is not a floating-point tensor.
        ValueError: If R is 0 or a value is not finite.

    Example:
        >>> mean_stderr(torch.tensor([1.0, 3.0]))
        tensor(1., dtype=torch.float64)
    """
    checked_finite(values, "values")
    return ratio_stderr(values, torch.ones_like(values))


def ratio_stderr(numerator: Tensor, denominator: Tensor) -> Tensor:
    r"""Return the delta-method standard error of a ratio of two sums over M pairs.

    .. math::
        R = \frac{\sum_m a_m}{\sum_m b_m}, \qquad
        \mathrm{se}^2 = \frac{1}{\bigl(\sum_m b_m\bigr)^2} \frac{M}{M-1}
        \sum_{m=1}^{M} (a_m - R b_m)^2

    Of contrastive entropies: pairs are sentences (:func:`contrastive_ratio_stderr`), or
    replicates, whose entropies at a level and at the baseline are a_m and b_m.

    Args:
        numerator: a, shape ``(..., M)``.
        denominator: b, of a shape that broadcasts.

    Returns:
        The ratio's unit, shape ``(...)``, float64; ``inf`` (unknown) for one pair.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If M is 0, the b total 0 or a number is not finite.

    Example:
        >>> ratio_stderr(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
        tensor(1., dtype=torch.float64)

    Reference:
        Cochran (1977), section 2.11, without finite-population correction.
    """
    checked_finite(numerator, "numerator")
    checked_finite(denominator, "denominator")
    if numerator.ndim == 0:
        raise ValueError("numerator must have shape (..., M); got a single number")
    a, b = torch.broadcast_tensors(in_float64(numerator), in_float64(denominator))
    num_pairs = a.shape[-1]
    total: Tensor = b.sum(-1)
    if (total == 0).any():
        raise ValueError("the denominator totals 0: no ratio")
    residual = a - (a.sum(-1) / total)[..., None] * b
    if num_pairs == 1:
        return torch.full_like(total, torch.inf)
    spread: Tensor = residual.square().sum(-1) * num_pairs / (num_pairs - 1)
    return spread.sqrt() / total.abs()


def checked_finite(values: Tensor, name: str) -> None:
    """Raise unless it is a floating-point tensor of finite numbers, one or more."""
    if checked_floating(values, name).numel() == 0:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: nothing to compute")
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        where = tuple(bad[0].tolist())
        raise ValueError(
            f"{name}{list(where)} is {values[where].item()}; expected finite"
        )
