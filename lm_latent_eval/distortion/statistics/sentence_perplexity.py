"""Mean of sentence perplexities, as opposed to corpus perplexity."""

import math

from torch import Tensor

from lm_latent_eval.distortion.statistics.checks import checked_integers, checked_log_p
from lm_latent_eval.estimators.standard_errors import mean_stderr


def mean_sentence_perplexity(log_p: Tensor, num_tokens: Tensor) -> tuple[float, float]:
    r"""Return the mean over sentences of their perplexities, and its standard error.

    .. math:: \frac{1}{N} \sum_{n=1}^{N} \exp\Bigl(-\frac{\log p(x_n)}{T_n}\Bigr)

    "Mean perplexity across sentences" may mean this or the corpus's,
    :math:`\exp(-\sum_n \log p(x_n) / \sum_n T_n)` (:func:`perplexity`). This one is the
    higher where sentences are equally long (Jensen), and a few bad sentences raise it
    without limit. Of estimated log p it errs upwards, as log p-hat does downwards.

    Args:
        log_p: Log p of each sentence in nats, shape ``(N,)``; ``-inf`` is a
            probability of zero.
        num_tokens: T, predicted tokens of each, shape ``(N,)``, of integers.

    Returns:
        The mean, and its standard error across sentences, which is ``inf`` (unknown)
        for one sentence. Both are ``inf`` where a sentence has probability zero or its
        perplexity is above what float64 can hold.

    Raises:
        TypeError: If ``log_p`` is not a floating-point tensor, or ``num_tokens`` not
            one of integers.
        ValueError: If N is 0, the shapes differ, a log-probability is NaN or above 0,
            or a length is below 1.

    Example:
        >>> import torch
        >>> log_p = -torch.tensor([1 * math.log(2), 3 * math.log(4)])
        >>> mean, stderr = mean_sentence_perplexity(log_p, torch.tensor([1, 3]))
        >>> round(mean, 4), round(stderr, 4)
        (3.0, 1.0)

    Reference:
        LeBrun et al. (2022), appendix A.3, tables 4 and 5.
    """
    if len(checked_log_p(log_p, "log_p")) == 0:
        raise ValueError("no sentences: no mean")
    checked_integers(num_tokens, "num_tokens", count=len(log_p), least=1)
    perplexities = (-log_p.double() / num_tokens).exp()
    if not perplexities.isfinite().all():
        return math.inf, math.inf
    return perplexities.mean().item(), mean_stderr(perplexities).item()
