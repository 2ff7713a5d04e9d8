"""A corpus's perplexity at each level of aggregation, with its diagnostics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.certificate import certified_perplexity
from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.corpus import (
    corpus_effective_sample_size,
    corpus_log_evidence,
    corpus_perplexity,
    corpus_stderr,
    stacked_weights,
    total_count,
)
from lm_latent_eval.estimators.corpus_rate import CorpusRate
from lm_latent_eval.estimators.curve import log_grid, sample_size_curve
from lm_latent_eval.estimators.estimate import Estimate
from lm_latent_eval.estimators.rates import perplexity


@dataclass(frozen=True)
class CorpusEstimate:
    """Importance-sampled perplexity of a corpus, per predicted token."""

    instance: CorpusRate
    """Every input estimated by itself: exp(-1/T sum_n log p-hat(x_n)). Its error is
    that of the draws: no log-weight tells what was never drawn."""
    corpus: CorpusRate | None
    """The inputs' weights multiplied first: exp(-1/T log p-hat(x_C)); None where every
    product holds a weight of zero."""
    corpus_effective_sample_size: float
    """Of the products; 1 is as good as one draw."""
    corpus_num_samples: int
    """K of the products: as many draws of every input as the least has."""
    certified: float
    """What the true perplexity is at most, at ``confidence``."""
    confidence: float
    estimates: tuple[Estimate, ...]
    """Of each input, with effective sample size, standard error and Pareto k."""
    curve: tuple[tuple[int, float | None], ...]
    """k -> instance-level perplexity from the first k draws of every input; None
    where an input has no positive weight among them."""

    @classmethod
    def of(
        cls,
        log_w: Sequence[Tensor],
        num_tokens: Tensor,
        *,
        confidence: float = 0.95,
        num_configurations: int = 1,
        multiplicity: int = 1,
    ) -> Self:
        """Estimate a corpus's perplexity from the log-weights of its inputs.

        Args:
            log_w: N tensors of log-weights in nats, in the order drawn; K may differ.
            num_tokens: Predicted tokens of each input, shape ``(N,)``.
            confidence: Of the certificate.
            num_configurations: The runs of which this is the best.
            multiplicity: The occurrences of the most repeated input that share draws.

        Raises:
            MissedSupportError: If all weights of an input are zero.
            TypeError: If log-weights are not floating-point tensors.
            ValueError: If there is no input, there is not one count an input or no
                token is counted, or a weight is NaN or ``+inf``.

        Example:
            >>> log_w = [torch.tensor(w).log() for w in ([0.5, 0.25], [0.5, 0.5])]
            >>> found = CorpusEstimate.of(log_w, torch.tensor([2, 2]))
            >>> round(found.instance.value, 4), round(found.certified, 4)
            (1.5197, 3.2137)
            >>> [k for k, perplexity in found.curve]
            [1, 2]
        """
        if len(log_w) == 0:
            raise ValueError("log_w holds no input")
        total = total_count(num_tokens, "num_tokens", len(log_w))
        estimates = tuple(map(_estimate, range(len(log_w)), log_w, num_tokens.tolist()))
        evidences = torch.tensor(
            [e.log_evidence for e in estimates], dtype=torch.float64
        )
        least = min(len(row) for row in log_w)
        rows = stacked_weights([row[:least] for row in log_w])
        sizes = log_grid(least)
        curve = zip(sizes, sample_size_curve(rows, sizes).sum(0).tolist(), strict=True)
        return cls(
            instance=CorpusRate.perplexity(estimates, num_tokens),
            corpus=_corpus_level(rows, total),
            corpus_effective_sample_size=corpus_effective_sample_size(rows).item(),
            corpus_num_samples=least,
            certified=certified_perplexity(
                evidences,
                total,
                confidence,
                num_configurations=num_configurations,
                multiplicity=multiplicity,
            ),
            confidence=confidence,
            estimates=estimates,
            curve=tuple(
                (k, None if log_p == -math.inf else perplexity(log_p, total))
                for k, log_p in curve
            ),
        )


def filter_log_weights(log_increments: Tensor) -> Tensor:
    r"""Return the log-weights of particle filters from what each token added.

    .. math::
        \log\hat Z_r = \sum_{t=1}^{T} \log \frac{1}{M} \sum_{m=1}^{M} w_{rtm}

    for filters r that resample their M particles at every token. Each Z_r is unbiased
    for p(x): a text's filters are to the token level what draws are to the instance
    level. The sum of a single filter's increments is one draw, without an error.

    Args:
        log_increments: Log of a filter's mean weight at each token, nats, shape
            ``(..., T)``; ``-inf`` where all its particles died.

    Returns:
        Nats, shape ``(...)``, float64.

    Raises:
        TypeError: If ``log_increments`` is not a floating-point tensor.
        ValueError: If T is 0, or an increment is NaN or ``+inf``.

    Example:
        >>> filter_log_weights(torch.tensor([[0.5, 0.5], [0.5, 0.25]]).log()).exp()
        tensor([0.2500, 0.1250], dtype=torch.float64)

    Reference:
        Del Moral (2004), chapter 7, for unbiasedness.
    """
    checked_weights(log_increments)
    return in_float64(log_increments).sum(-1)


def _estimate(index: int, log_w: Tensor, num_tokens: int) -> Estimate:
    """Return one input's estimate, or say which input has none."""
    try:
        return Estimate.from_log_weights(log_w, num_tokens=num_tokens)
    except ValueError as err:
        raise type(err)(f"input {index}: {err}") from err


def _corpus_level(log_w: Tensor, total: int) -> CorpusRate | None:
    if corpus_log_evidence(log_w) == -math.inf:
        return None
    value = corpus_perplexity(log_w, total)
    relative = corpus_stderr(log_w).item() / total
    return CorpusRate(
        value,
        stderr=None,
        monte_carlo_stderr=None,
        draws_stderr=value * relative if relative else 0.0,
    )
