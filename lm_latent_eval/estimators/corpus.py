r"""Corpus perplexity from per-text weights, and lower bounds at a stated confidence.

    instance level   exp(-1/T sum_n log (1/K sum_k w_nk))
    corpus level     exp(-1/T log (1/K sum_k prod_n w_nk))

Unbiased, independent, non-negative estimates have an unbiased product, so Markov's
inequality bounds how far it can exceed the truth, with no assumption on the weights:

    P(prod_n p-hat(x_n) >= p(x_1 .. x_N) / delta) <= delta

Symbols: log p-hat(x_n) -> ``log_evidences[n]``; log w_nk -> ``log_w[n, k]``;
T -> ``num_tokens``, the predicted tokens of all inputs together; 1 - delta ->
``confidence``.
Departures: the paper's equation 6 leaves open how p-hat(x_C) draws; here, as in the
released KGLM code, the k-th weight of the corpus is the product of its inputs' k-th.
Source: Logan et al. (2020), section 3, equations 5 and 6; they state the bound in
expectation only (equation 4).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import (
    checked_floating,
    checked_weights,
    refuse_first,
)
from lm_latent_eval.estimators.importance import log_evidence
from lm_latent_eval.estimators.rates import perplexity


def checked_log_evidences(log_evidences: Tensor) -> Tensor:
    """Return the log-evidences of N inputs in float64, or raise with the first bad one.

    Args:
        log_evidences: Nats, shape ``(N,)``, all finite.

    Returns:
        The same numbers, shape ``(N,)``, float64.

    Raises:
        TypeError: If ``log_evidences`` is not a floating-point tensor.
        ValueError: If N is 0, or an entry is not finite: a corpus cannot be scored
            without one of its inputs.

    Example:
        >>> checked_log_evidences(torch.tensor([-3.0, -torch.inf]))
        Traceback (most recent call last):
        ...
        ValueError: log_evidences[1] is -inf; expected finite: ...
    """
    checked_floating(log_evidences, "log_evidences")
    if log_evidences.ndim != 1 or len(log_evidences) == 0:
        raise ValueError(
            "log_evidences must have shape (N,) with N >= 1; "
            f"got {tuple(log_evidences.shape)}"
        )
    refuse_first(
        ~log_evidences.isfinite(),
        log_evidences,
        "log_evidences",
        "finite: -inf means that no draw of this input had a positive weight",
    )
    return in_float64(log_evidences)


def total_count(counts: int | Tensor, name: str, num_inputs: int) -> int:
    """Return how many tokens, words or bytes the inputs have in all.

    Args:
        counts: The total, or a count an input, shape ``(N,)``.
        name: What the caller calls it.
        num_inputs: N.

    Returns:
        The total, at least 1.

    Raises:
        ValueError: If there is not one count an input, one is negative, or the total
            is below 1.

    Example:
        >>> total_count(torch.tensor([3, 4]), "num_tokens", num_inputs=2)
        7
    """
    if isinstance(counts, Tensor) and counts.ndim > 0:
        if counts.shape != (num_inputs,):
            raise ValueError(
                f"{name} has shape {tuple(counts.shape)}; expected a total, or one "
                f"count an input, shape ({num_inputs},)"
            )
        refuse_first(~(counts >= 0), counts, name, ">= 0")
        counts = counts.sum()
    total = int(counts)
    if total < 1:
        raise ValueError(f"{name} must be at least 1 in all; got {total}")
    return total


def corpus_weights(log_w: Tensor | Sequence[Tensor]) -> Tensor:
    r"""Return a corpus's log-weights: the k-th is the product of its inputs' k-th.

    .. math:: \log W_k = \sum_{n=1}^{N} \log w_{nk}

    Unbiased for the probability of the corpus when inputs draw independently:
    :func:`log_evidence`, :func:`stderr` and :func:`effective_sample_size` are theirs as
    of any weights. At an effective sample size near 1 the error is near 1 whatever the
    true one is: it cannot be believed there.

    Args:
        log_w: Log-weights in nats, shape ``(N, K)``, or N tensors of shape ``(K,)``.

    Returns:
        Nats, shape ``(K,)``, float64; ``-inf`` where an input's weight is zero, which
        can be everywhere even if every input has positive weights.

    Raises:
        TypeError: If an input's log-weights are not a floating-point tensor.
        ValueError: If N or K is 0, an input has another K than the first, or a weight
            is NaN or ``+inf``.

    Example:
        >>> log_w = torch.tensor([[0.5, 0.1], [0.2, 0.4]]).log()
        >>> corpus_weights(log_w).exp()
        tensor([0.1000, 0.0400], dtype=torch.float64)
        >>> corpus_weights([torch.zeros(2), torch.zeros(3)])
        Traceback (most recent call last):
        ...
        ValueError: log_w[1] has 3 samples and log_w[0] has 2; the corpus level needs...

    Reference:
        Logan et al. (2020), section 3, equation 6.
    """
    if len(log_w) == 0:
        raise ValueError("log_w must hold the log-weights of at least one input")
    for index, row in enumerate(log_w):
        if checked_floating(row, f"log_w[{index}]").ndim != 1:
            raise ValueError(
                f"log_w[{index}] must have shape (K,); got {tuple(row.shape)}"
            )
        if len(row) != len(log_w[0]):
            raise ValueError(
                f"log_w[{index}] has {len(row)} samples and log_w[0] has "
                f"{len(log_w[0])}; the corpus level needs the same K for every input"
            )
    rows = log_w if isinstance(log_w, Tensor) else torch.stack(list(log_w))
    checked_weights(rows)
    return in_float64(rows).sum(0)


def instance_perplexity(log_evidences: Tensor, num_tokens: int | Tensor) -> float:
    r"""Return the perplexity of a corpus, aggregated at the instance level.

    .. math:: \exp\Bigl(-\frac{1}{T} \sum_{n=1}^{N} \log\hat p(x_n)\Bigr)

    A stochastic *upper* bound of the true perplexity where the log p-hat are
    stochastic lower bounds; a strict one where they are strict (a beam's). Each
    input's bias adds up: it does not shrink with N.

    Args:
        log_evidences: Nats, shape ``(N,)``.
        num_tokens: T, predicted tokens only: in all, or an input, shape ``(N,)``.

    Returns:
        Perplexity per predicted token.

    Raises:
        TypeError: If ``log_evidences`` is not a floating-point tensor.
        ValueError: If a log-evidence is not finite, or no token is counted.

    Example:
        >>> round(instance_perplexity(torch.tensor([0.25, 0.125]).log(), 5), 6)
        2.0

    Reference:
        Logan et al. (2020), section 3, equation 5; the aggregation they recommend.
    """
    total = checked_log_evidences(log_evidences).sum().item()
    return perplexity(total, total_count(num_tokens, "num_tokens", len(log_evidences)))


def corpus_perplexity(
    log_w: Tensor | Sequence[Tensor], num_tokens: int | Tensor
) -> float:
    r"""Return the perplexity of a corpus, aggregated at the corpus level.

    .. math::
        \exp\Bigl(-\frac{1}{T} \log\hat p(x_C)\Bigr),
        \qquad \hat p(x_C) = \frac{1}{K} \sum_{k=1}^{K} \prod_{n=1}^{N} w_{nk}

    A stochastic upper bound of the true perplexity, looser than
    :func:`instance_perplexity` wherever the latents matter: the variance of a product
    of N weights grows exponentially in N, a single product soon outweighs all others,
    and the estimate nears the ELBO, the mean of log w. Read it with the effective
    sample size of :func:`corpus_weights`.

    Args:
        log_w: Log-weights in nats, shape ``(N, K)``, or N tensors of shape ``(K,)``.
        num_tokens: T, predicted tokens only: in all, or an input, shape ``(N,)``.

    Returns:
        Perplexity per predicted token.

    Raises:
        TypeError: If an input's log-weights are not a floating-point tensor.
        ValueError: As :func:`corpus_weights`; also if every product of weights is
            zero, or no token is counted.

    Example:
        >>> log_w = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
        >>> round(corpus_perplexity(log_w, num_tokens=2), 6)
        2.0

    Reference:
        Logan et al. (2020), section 3, equation 6.
    """
    total = log_evidence(corpus_weights(log_w)).item()
    if total == -math.inf:
        raise ValueError(
            f"all {len(log_w[0])} products of {len(log_w)} inputs' weights are zero: "
            "no corpus-level perplexity; draw more samples or aggregate by instance"
        )
    return perplexity(total, total_count(num_tokens, "num_tokens", len(log_w)))


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
