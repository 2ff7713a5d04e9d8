r"""Corpus perplexity from per-text weights, at the instance or the corpus level.

    instance level   exp(-1/T sum_n log (1/K sum_k w_nk))
    corpus level     exp(-1/T log (1/K sum_k prod_n w_nk))

Symbols: log p-hat(x_n) -> ``log_evidences[n]``; log w_nk -> ``log_w[n, k]``;
T -> ``num_tokens``, the predicted tokens of all inputs together.
Departures: the paper's equation 6 leaves open how p-hat(x_C) draws; here, as in the
released KGLM code, the k-th weight of the corpus is the product of its inputs' k-th.
Source: Logan et al. (2020), section 3, equations 5 and 6.
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
