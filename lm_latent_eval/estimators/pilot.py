r"""Sample size for a target standard error, from a pilot run.

    pilot weights -> relative variance v of one weight -> K = v / target^2

The reported estimate must come from K *fresh, independent* draws. Given the pilot, K
is then a constant, p-hat is unbiased and the certificate holds. An estimate that
includes its pilot, or that stopped because the running estimate or its running
standard error looked good, is refused: with a stopping time tau that looks at the
draws, Wald's identity E[sum of the first tau weights] = p E[tau] gives

    E[p-hat_tau] = p - Cov(p-hat_tau, tau) / E[tau]

so a rule that stops early on draws that look high biases p-hat upwards, a little for
every input, and over a corpus the certificate fails. Stopping at a small running
standard error is such a rule where a weight is now and then (nearly) zero: draws
without one look precise and are too high. (Where weights have a long right tail it
errs downwards instead, on those that have not met the tail yet.)
"""

import math

import torch
from torch import Tensor

from lm_latent_eval.estimators.importance import relative_variance

WORTH_LESS = 0.2
"""Monte Carlo error, as a share of that over texts, that more samples hardly improve:
errors add in squares."""


def enough_samples(num_samples: int, draws_stderr: float, texts_stderr: float) -> int:
    r"""Return the K beyond which more samples hardly make a corpus's error smaller.

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


def required_num_samples(
    pilot_log_w: Tensor, target_stderr: float, *, maximum: int, minimum: int = 2
) -> Tensor:
    r"""Choose K so that the log-evidence has about the target standard error.

    .. math::
        K = \Bigl\lceil \frac{1}{\epsilon^2} \cdot
        \frac{1}{K_0} \sum_{k=1}^{K_0} \Bigl(\frac{w_k}{\bar w} - 1\Bigr)^2
        \Bigr\rceil, \qquad K_{\min} \le K \le K_{\max}

    Draw K fresh samples afterwards and report those alone; the pilot's weights must
    not enter the number. Do not draw on until the standard error looks good instead:
    stopping on the running estimate biases p-hat and voids the certificate.

    K is biased downwards when the weights' tail is heavy: :math:`K_0` draws show a
    relative variance of at most :math:`K_0 - 1`. That costs precision, never the
    bound. Corpus-level aggregation needs one K for all inputs: take the largest.

    Args:
        pilot_log_w: The pilot's log-weights in nats, shape ``(..., K_0)``.
        target_stderr: :math:`\epsilon`, nats, the standard error wanted of one
            input's log-evidence.
        maximum: The most samples that can be paid for.
        minimum: The fewest, at least 1; 2 is the fewest with a standard error.

    Returns:
        K for each input, shape ``(...)``, int64; ``maximum`` where the pilot's weights
        are all zero or it has only one draw, since then the variance is unknown.

    Raises:
        TypeError: If ``pilot_log_w`` is not a floating-point tensor.
        ValueError: If the target is not positive and finite, the limits are not
            1 <= minimum <= maximum, or a weight is NaN or ``+inf``.

    Example:
        >>> pilot = torch.tensor([[1.0, 3.0], [1.0, 1.0]], dtype=torch.float64)
        >>> required_num_samples(pilot.log(), 0.05, maximum=10_000)  # 0.25 / 0.05^2
        tensor([100,   2])
    """
    if not 0 < target_stderr < math.inf:
        raise ValueError(f"target_stderr must be above 0; got {target_stderr}")
    if not 1 <= minimum <= maximum:
        raise ValueError(
            "the limits must be 1 <= minimum <= maximum; "
            f"got minimum {minimum}, maximum {maximum}"
        )
    # Not by the square, which can leave the range of numbers where K does not.
    num_samples = relative_variance(pilot_log_w) / target_stderr / target_stderr
    rounding = 1 - 1e-12  # so that a quotient of 100 + 1e-14 asks for 100, not 101
    return (num_samples * rounding).ceil().clamp(minimum, maximum).to(torch.int64)
