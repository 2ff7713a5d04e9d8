"""Estimates by number of samples, from the first K of one set of weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights


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
