r"""Mean estimation errors by length, observed and expected from per-token errors.

    observed(n) = mean of error(x) over the sequences with |x| = n
    expected(n) = n * e,    e = mean over all x of error(x) / |x|

Symbols: |x| -> ``num_tokens``, the end included; e, the paper's epsilon-bar ->
``token_error``.
Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.5 and figure 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from lm_latent_eval.distortion.statistics.bins import (
    FEWEST,
    checked_integers,
)
from lm_latent_eval.distortion.statistics.error_curve import estimation_error
from lm_latent_eval.estimators.standard_errors import bootstrap_interval


@dataclass(frozen=True)
class LengthError:
    """The sequences of one length."""

    num_tokens: int
    count: int
    mean_error: float
    """Nats; below 0 where the model underestimates."""
    lower: float
    """Of the mean error's bootstrap interval."""
    upper: float
    expected: float
    """The length times the mean error a token, nats."""


@dataclass(frozen=True)
class LengthErrors:
    r"""Mean estimation error by length, beside what lengths alone would make of it.

    The comparison is a fair test of errors that grow in proportion to length (then the
    mean of ratios estimates that proportion), and no decomposition where they do not:
    :math:`\bar\epsilon` counts a token of a short sequence for more than one of a long
    sequence, so that observed and expected errors need not agree even in total, and
    where the curves cross depends on which lengths are common.

    Example:
        >>> import torch
        >>> found = LengthErrors.of(
        ...     torch.tensor([-2.0, -4.0] * 11),
        ...     torch.tensor([-3.0, -8.0] * 11),
        ...     num_tokens=torch.tensor([1, 2] * 11),
        ... )
        >>> found.token_error  # of 1 and 2 nats a token
        -1.5
        >>> [(each.mean_error, each.expected) for each in found.lengths]
        [(-1.0, -1.5), (-4.0, -3.0)]
    """

    token_error: float
    """Mean over sequences of their error a token, nats."""
    lengths: tuple[LengthError, ...]
    """From the shortest."""
    left_out: int
    """Sequences of lengths that too few have; they count in ``token_error``."""

    @classmethod
    def of(
        cls,
        true_log_p: Tensor,
        model_log_p: Tensor,
        num_tokens: Tensor,
        *,
        estimated: bool = False,
    ) -> Self:
        """Average errors by length; only those of more than ten sequences.

        Args:
            true_log_p: Log p_L in nats, shape ``(N,)``.
            model_log_p: Log p_M in nats, shape ``(N,)``.
            num_tokens: Predicted tokens of each sequence, shape ``(N,)``, of integers.
            estimated: Whether log p_M are estimates, of which one may be above 0.

        Raises:
            TypeError: If a log-probability is not floating-point, or ``num_tokens`` no
                tensor of integers.
            ValueError: As :func:`estimation_error`; also if ``num_tokens`` is of
                another shape or below 1, or no length has so many sequences.
        """
        error = estimation_error(true_log_p, model_log_p, estimated=estimated)
        checked_integers(num_tokens, "num_tokens", count=len(error), least=1)
        token_error = (error / num_tokens).mean().item()
        found = []
        for length in num_tokens.unique().tolist():
            members = error[num_tokens == length]
            if len(members) < FEWEST:
                continue
            lower, upper = bootstrap_interval(members, seed=(0, length))
            found.append(
                LengthError(
                    num_tokens=length,
                    count=len(members),
                    mean_error=members.mean().item(),
                    lower=lower,
                    upper=upper,
                    expected=length * token_error,
                )
            )
        if not found:
            raise ValueError(
                f"no length has {FEWEST} of the {len(error)} sequences: score more"
            )
        left_out = len(error) - sum(each.count for each in found)
        return cls(token_error, tuple(found), left_out)
