r"""Certificates: lower confidence bounds of log-likelihoods by Markov's inequality.

Unbiased, independent, non-negative estimates have an unbiased product, so Markov's
inequality bounds how far it can exceed the truth, with no assumption on the weights:

    P(prod_n p-hat(x_n) >= p(x_1 .. x_N) / delta) <= delta

Symbols: 1 - delta -> ``confidence``; m -> ``num_configurations``; M ->
``multiplicity``.
Source: Markov's inequality on equation 3 of Logan et al. (2020); they state the bound
in expectation only (equation 4).
"""

import math

from torch import Tensor

from lm_latent_eval.estimators.corpus import checked_log_evidences, total_count
from lm_latent_eval.estimators.rates import perplexity


def certified_log_likelihood(
    log_evidences: Tensor,
    confidence: float = 0.95,
    *,
    num_configurations: int = 1,
    multiplicity: int = 1,
) -> float:
    r"""Return a lower bound of a corpus's log-likelihood at a stated confidence.

    With probability at least :math:`1 - \delta`, over the draws of the latents,

    .. math::
        \log p(x_1 .. x_N) \ge
        \sum_{n=1}^{N} \log\hat p(x_n) - M \log\frac{m}{\delta}

    The cost does not grow with N. It holds for any proposal and however heavy the
    weights' tail; a bad proposal makes it loose, never wrong. It needs that

    - each p-hat is unbiased, or biased downwards on the weight scale: importance
      sampling, a particle filter, a beam; not a bias-corrected logarithm, not a
      difference of two estimates;
    - K was decided before the draws (a pilot may choose it, if the p-hat come from
      fresh draws), never by looking at the running estimate;
    - different texts drew from independent streams. A text that occurs several times
      either draws anew each time, or its copies share one estimate, and then M is
      how many copies the most repeated text has: raising each of the independent
      ratios p-hat/p to its share of M, a power of at most 1, keeps its mean at most 1
      (Jensen), and Markov's inequality applies to the M-th root of the product;
    - nothing was selected on these texts. The best of m runs, be they temperatures,
      proposals, numbers of samples or seeds, pays m (the union bound): count every
      run that could have been reported.

    Args:
        log_evidences: Log p-hat of the corpus's texts in nats, shape ``(N,)``, copies
            included; or one corpus-level estimate, shape ``(1,)``.
        confidence: :math:`1 - \delta`, above 0 and below 1.
        num_configurations: m, the runs of which this is the best; 1 if it was fixed
            beforehand.
        multiplicity: M, the occurrences of the most repeated text that share their
            draws; 1 if all draws are independent.

    Returns:
        Nats, at most the true log-likelihood at the stated confidence.

    Raises:
        TypeError: If ``log_evidences`` is not a floating-point tensor.
        ValueError: If a log-evidence is not finite, ``confidence`` is not between 0
            and 1, or m or M is below 1.

    Example:
        >>> import torch
        >>> log_evidences = torch.full((1000,), -100.0)
        >>> round(certified_log_likelihood(log_evidences), 4)  # -1e5 - log 20
        -100002.9957
        >>> round(certified_log_likelihood(log_evidences, num_configurations=6), 4)
        -100004.7875
    """
    total = checked_log_evidences(log_evidences).sum().item()
    return total - certificate_cost(
        confidence, num_configurations=num_configurations, multiplicity=multiplicity
    )


def certificate_cost(
    confidence: float = 0.95, *, num_configurations: int = 1, multiplicity: int = 1
) -> float:
    r"""Return what a certificate takes off a corpus's log-likelihood, nats.

    .. math:: M \log\frac{m}{\delta}

    Args:
        confidence: :math:`1 - \delta`, above 0 and below 1.
        num_configurations: m, the runs of which this is the best.
        multiplicity: M, the occurrences of the most repeated text that share their
            draws.

    Raises:
        ValueError: If ``confidence`` is not between 0 and 1, or m or M is below 1.

    Example:
        >>> round(certificate_cost(), 4)
        2.9957
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1; got {confidence}")
    if num_configurations < 1:
        raise ValueError(
            f"num_configurations must be at least 1; got {num_configurations}"
        )
    if multiplicity < 1:
        raise ValueError(f"multiplicity must be at least 1; got {multiplicity}")
    delta = (1 - confidence) / num_configurations
    return multiplicity * math.log(1 / delta)


def certified_perplexity(
    log_evidences: Tensor,
    num_tokens: int | Tensor,
    confidence: float = 0.95,
    *,
    num_configurations: int = 1,
    multiplicity: int = 1,
) -> float:
    r"""Return an upper bound of a corpus's perplexity at a stated confidence.

    .. math::
        \exp\Bigl(-\frac{1}{T} \Bigl(\sum_{n=1}^{N} \log\hat p(x_n)
        - M \log\frac{m}{\delta}\Bigr)\Bigr)

    Needs all that :func:`certified_log_likelihood` needs: K fixed before the draws,
    independent streams, nothing selected on these texts without paying for it.

    Args:
        log_evidences: Log p-hat of the corpus's texts in nats, shape ``(N,)``.
        num_tokens: T, predicted tokens only: in all, or an input, shape ``(N,)``.
        confidence: :math:`1 - \delta`, above 0 and below 1.
        num_configurations: m, the runs of which this is the best.
        multiplicity: M, the occurrences of the most repeated text that share their
            draws.

    Returns:
        Perplexity per predicted token, at least the true one at that confidence.

    Raises:
        TypeError: If ``log_evidences`` is not a floating-point tensor.
        ValueError: As :func:`certified_log_likelihood`, or if no token is counted.

    Example:
        >>> import torch
        >>> log_evidences = torch.full((1000,), -100.0)
        >>> round(certified_perplexity(log_evidences, 20_000), 4)  # estimate: 148.4132
        148.4354
    """
    certified = certified_log_likelihood(
        log_evidences,
        confidence,
        num_configurations=num_configurations,
        multiplicity=multiplicity,
    )
    total = total_count(num_tokens, "num_tokens", len(log_evidences))
    return perplexity(certified, total)
