"""Beam marginalization: log of the summed probability of the latents in a beam.

Symbols: log p(x, z_k) -> ``log_joint[..., k - 1]``; k -> the beam's width.
Source: Logan et al. (2020), section 4, "Beam Marginalization", and table 2.
"""

from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights


def log_mass(log_joint: Tensor) -> Tensor:
    r"""Return the log of the joint probabilities' sum over a beam.

    .. math::
        \log \sum_{z \in B} p(x, z) \le \log \sum_{z} p(x, z) = \log p(x)

    A strict lower bound of log p(x), hence a strict upper bound of perplexity, with
    no randomness in it and no confidence to state; equal to log p(x) once B holds
    every latent. How far below it lies is unknown.

    The latents must be *distinct as p sees them*: two beam entries that differ only
    in what p never charges are one latent, and counting both can exceed log p(x).
    Numbers alone cannot show that, so it is the caller's to ensure.

    Args:
        log_joint: Log p(x, z) in nats of the beam's distinct latents, shape
            ``(..., k)``; ``-inf`` fills the places of a beam that found fewer.

    Returns:
        Nats, shape ``(...)``, float64; ``-inf`` where p is zero on the whole beam.

    Raises:
        TypeError: If ``log_joint`` is not a floating-point tensor.
        ValueError: If k is 0, or an entry is NaN or ``+inf``.

    Example:
        >>> import torch
        >>> log_mass(torch.tensor([0.2, 0.1, 0.0]).log()).exp()
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Logan et al. (2020), section 4, "Beam Marginalization".
    """
    checked_weights(log_joint)
    return in_float64(log_joint).logsumexp(-1)
