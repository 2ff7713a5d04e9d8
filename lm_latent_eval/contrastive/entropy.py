r"""Contrastive entropy of one level of distortion, and verdicts on two models.

    H_C(T; d)      = (sum_n log s(x_n) - sum_n log s(x~_n)) / U
    H_CR(T; d, d0) = H_C(T; d) / H_C(T; d0)

where x~ is the sentence x after a noise channel at level d. Scores may be unnormalised,
because the normaliser is in both sums.

Symbols: log s(x_n) -> ``log_scores[n]``; log s(x~_n) -> ``distorted[..., n]``;
U -> ``num_units``, the words of the text, or its sentences; d_0 -> ``baseline``.
Departures: the paper averages ten runs and gives no errors. Here are two: over
sentences (another text of the same kind) and over replicates of the noise (the same
text, distorted again). Nats; the paper prints bits.
Source: Arora and Rangarajan (2016), section 3, equations 7 and 8, table 1.
"""

import math
from enum import StrEnum

import torch
from torch import Tensor

from lm_latent_eval.estimators.checks import checked_finite
from lm_latent_eval.estimators.corpus import total_count
from lm_latent_eval.estimators.standard_errors import ratio_stderr


def contrastive_entropy(
    log_scores: Tensor, distorted: Tensor, num_units: int | Tensor
) -> Tensor:
    r"""Return the contrastive entropy of a text against distorted copies of it.

    .. math::
        H_C = \frac{1}{U}
        \sum_{n=1}^{N} \bigl(\log s(x_n) - \log s(\tilde x_n)\bigr)

    Not scale invariant: raising every score to a power multiplies it by that power.
    Read it with :func:`contrastive_ratio`.

    Args:
        log_scores: Log-scores of the sentences in nats, shape ``(N,)``.
        distorted: Scores of their distorted copies, shape ``(..., N)``: levels and
            replicates lead.
        num_units: U: in all, or a count a sentence, shape ``(N,)``; N itself for a
            rate per sentence.

    Returns:
        Nats per unit, shape ``(...)``, float64; negative where the model prefers the
        distorted text.

    Raises:
        TypeError: If scores are not floating-point tensors.
        ValueError: If a score is not finite, the numbers of sentences differ, or no
            unit is counted.

    Example:
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> contrastive_entropy(log_scores, torch.tensor([-16.0, -22.0]), num_units=4)
        tensor(2., dtype=torch.float64)

    Reference:
        Arora and Rangarajan (2016), equation 7; equation 16 for unnormalised scores.
    """
    difference = _differences(log_scores, distorted)
    return difference.sum(-1) / total_count(num_units, "num_units", len(log_scores))


def contrastive_stderr(
    log_scores: Tensor, distorted: Tensor, num_units: int | Tensor
) -> Tensor:
    r"""Return the standard error of the contrastive entropy over sentences.

    Sentences are pairs (x_n, distorted x_n), so what makes a sentence improbable either
    way cancels. With a count a sentence the rate is a ratio of two sums, and the
    delta method gives

    .. math::
        \mathrm{se}^2 = \frac{1}{U^2} \frac{N}{N-1}
        \sum_{n=1}^{N} (\Delta_n - H_C u_n)^2,
        \qquad \Delta_n = \log s(x_n) - \log s(\tilde x_n)

    With a total alone, u_n is U / N. It answers for the choice of sentences *and* for
    their noise, which differs from sentence to sentence. For the mean of R replicates
    give the mean of their scores, ``distorted.mean(-2)``.

    Args:
        log_scores: Nats, shape ``(N,)``.
        distorted: Nats, shape ``(..., N)``.
        num_units: U: in all, or a count a sentence, shape ``(N,)``.

    Returns:
        Nats per unit, shape ``(...)``, float64; ``inf`` (unknown) for one sentence.

    Raises:
        TypeError: As :func:`contrastive_entropy`.
        ValueError: As :func:`contrastive_entropy`.

    Example:
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> contrastive_stderr(log_scores, torch.tensor([-16.0, -22.0]), num_units=4)
        tensor(1., dtype=torch.float64)
    """
    difference = _differences(log_scores, distorted)
    total = total_count(num_units, "num_units", len(log_scores))
    units = torch.as_tensor(num_units, dtype=torch.float64)
    if units.ndim == 0:
        units = (units.new_tensor(total) / len(log_scores)).expand(len(log_scores))
    return ratio_stderr(difference, units.to(difference.device))


def contrastive_ratio(entropy: Tensor, baseline: Tensor) -> Tensor:
    r"""Return the gain in contrastive entropy over a baseline level of distortion.

    .. math:: H_{CR}(T; d, d_0) = \frac{H_C(T; d)}{H_C(T; d_0)}

    A pure number: units, the logarithm's base and a power of all scores cancel. Of
    replicates, give the mean entropies; the mean of their ratios is a different, less
    stable quantity.

    Args:
        entropy: H_C at the higher levels, any shape.
        baseline: H_C at the baseline, of a shape that broadcasts; positive.

    Returns:
        The ratio, float64.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If an entropy is not finite or a baseline is not positive: a model
            that does not notice the mildest distortion has no scale to compare with.

    Example:
        >>> contrastive_ratio(torch.tensor([4.0, 5.0]), torch.tensor(2.0))
        tensor([2.0000, 2.5000], dtype=torch.float64)

    Reference:
        Arora and Rangarajan (2016), equation 8.
    """
    checked_finite(entropy, "entropy")
    checked_finite(baseline, "baseline")
    if not (baseline > 0).all():
        raise ValueError(
            f"the baseline's contrastive entropy is {baseline.min().item()}: no ratio "
            "without a positive one; raise its level or take more text"
        )
    return entropy.double() / baseline.double()


def contrastive_ratio_stderr(
    log_scores: Tensor, distorted: Tensor, baseline: Tensor
) -> Tensor:
    r"""Return the standard error of the contrastive ratio over sentences.

    .. math::
        \mathrm{se}^2 = \frac{1}{\bigl(\sum_n \Delta^0_n\bigr)^2} \frac{N}{N-1}
        \sum_{n=1}^{N} (\Delta_n - H_{CR} \Delta^0_n)^2

    The delta method's, by sentence: both levels distort the same sentences. Counts of
    units cancel.

    Args:
        log_scores: Nats, shape ``(N,)``.
        distorted: At the higher level, nats, shape ``(..., N)``.
        baseline: At the baseline level, nats, of a shape that broadcasts.

    Returns:
        A pure number, shape ``(...)``, float64; ``inf`` (unknown) for one sentence.

    Raises:
        TypeError: As :func:`contrastive_entropy`.
        ValueError: As :func:`contrastive_entropy`, or if the baseline's differences
            total 0.

    Example:
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> baseline = torch.tensor([-12.0, -22.0])
        >>> contrastive_ratio_stderr(log_scores, torch.tensor([-16.0, -22.0]), baseline)
        tensor(1., dtype=torch.float64)
    """
    return ratio_stderr(
        _differences(log_scores, distorted), _differences(log_scores, baseline)
    )


class Verdict(StrEnum):
    """Verdict on two models by contrastive entropy and ratio.

    Example:
        >>> print(Verdict.SUPERIOR)
        superior
    """

    SUPERIOR = "superior"
    """Higher entropy, and a ratio that is higher or similar."""

    SCALING = "scaling"
    """Higher entropy, lower ratio: the models' scores differ in scale."""

    INDETERMINATE = "indeterminate"
    """Lower entropy, but a ratio that is higher or similar."""

    INFERIOR = "inferior"
    """Lower entropy and lower ratio."""


SIMILAR = 0.03
"""Largest relative loss of a ratio that counts as similar. The paper gives no number;
with this one, its readings of its tables 2 and 3 come out."""


def verdict(
    entropy: float,
    ratio: float,
    other_entropy: float,
    other_ratio: float,
    *,
    similar: float = SIMILAR,
) -> Verdict:
    """Judge one model against another at one level of distortion.

    Both must have been given the same text, distorted the same way. An equal entropy
    is not a higher one.

    Args:
        entropy: The model's contrastive entropy, in the other's unit.
        ratio: Its contrastive ratio.
        other_entropy: The other model's contrastive entropy.
        other_ratio: Its ratio, over the same baseline.
        similar: The ratio is similar down to this share of the other's below it.

    Raises:
        ValueError: If a number is not finite or ``similar`` is not from 0 to 1.

    Example:
        >>> print(verdict(5.339, 2.097, other_entropy=4.179, other_ratio=2.096))
        superior
        >>> print(verdict(6.477, 3.275, other_entropy=6.609, other_ratio=2.596))
        indeterminate

    Reference:
        Arora and Rangarajan (2016), table 1.
    """
    numbers = (entropy, ratio, other_entropy, other_ratio)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"entropies and ratios must be finite; got {numbers}")
    if not 0 <= similar < 1:
        raise ValueError(f"similar must be at least 0 and below 1; got {similar}")
    holds = ratio >= other_ratio - similar * abs(other_ratio)
    if entropy > other_entropy:
        return Verdict.SUPERIOR if holds else Verdict.SCALING
    return Verdict.INDETERMINATE if holds else Verdict.INFERIOR


def _differences(log_scores: Tensor, distorted: Tensor) -> Tensor:
    """Return log s(x_n) - log s(x~_n) in nats, shape (..., N), float64."""
    checked_finite(log_scores, "log_scores")
    checked_finite(distorted, "distorted")
    if log_scores.ndim != 1:
        raise ValueError(
            f"log_scores must have shape (N,); got {tuple(log_scores.shape)}"
        )
    if distorted.shape[-1:] != log_scores.shape:
        raise ValueError(
            f"distorted has shape {tuple(distorted.shape)}; expected (..., "
            f"{len(log_scores)}): a copy of each sentence"
        )
    return log_scores.double() - distorted.double()
