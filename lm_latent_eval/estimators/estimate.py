"""The record of one estimate of log p(x): value, bound, errors, diagnostics."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.diagnostics import (
    MIN_PARETO_SAMPLES,
    pareto_k,
)
from lm_latent_eval.estimators.importance import (
    effective_sample_size,
    log_evidence,
    stderr,
)
from lm_latent_eval.estimators.rates import perplexity
from lm_latent_eval.estimators.standard_errors import pooled_degrees


class Bound(StrEnum):
    """In which direction an estimate of log p(x) bounds it, the strongest first.

    Example:
        >>> print(Bound.STOCHASTIC_LOWER)
        stochastic lower
    """

    EXACT = "exact"
    """The estimate is log p(x): every latent was summed over."""

    STRICT_LOWER = "strict lower"
    """log p-hat <= log p, always."""

    STOCHASTIC_LOWER = "stochastic lower"
    """E[log p-hat] <= log p, and a certificate exists: perplexity is bounded above."""

    ESTIMATED_LOWER = "estimate of a lower bound"
    """E[log p-hat] <= log p, but no certificate: the estimate of a bound, such as an
    average of log-weights, not the logarithm of an unbiased estimate."""

    NONE = "none"
    """Neither: a difference of estimates, a stopped run, a bias-corrected logarithm."""

    UNNORMALISED = "unnormalised score"
    """Not log p(x), but log p(x) plus an unknown constant."""

    @classmethod
    def weakest(cls, bounds: Iterable[Bound]) -> Bound:
        """Return the kind of a product of factors of these kinds.

        Example:
            >>> print(Bound.weakest([Bound.EXACT, Bound.STRICT_LOWER]))
            strict lower
        """
        return max(bounds, key=list(cls).index)


class MissedSupportError(ValueError):
    """No draw had a positive weight: there is no estimate of log p(x)."""


@dataclass(frozen=True)
class Estimate:
    """One input's estimated log p(x) with its diagnostics; picklable, by value.

    Raises:
        ValueError: If ``log_evidence`` is not finite, an error NaN or negative,
            ``num_samples`` below 1, ``num_tokens`` negative or ``draws_degrees`` not
            positive: what could not be
            computed is an error, never a record.

    Example:
        >>> import torch
        >>> log_w = torch.tensor([0.2, 0.4]).log()
        >>> estimate = Estimate.from_log_weights(log_w, num_tokens=3)
        >>> round(estimate.log_evidence, 4), round(estimate.draws_stderr, 4)
        (-1.204, 0.2357)
        >>> estimate.stderr is None  # draws alone do not know what they miss
        True
        >>> estimate.num_samples, str(estimate.bound), round(estimate.perplexity, 4)
        (2, 'stochastic lower', 1.4938)
    """

    log_evidence: float
    """Estimated log p(x), nats."""

    stderr: float | None
    """Monte Carlo standard error of ``log_evidence``, nats, what the draws may have
    missed included: 0 of what is exact; None where it cannot be estimated, since
    nothing but the draws themselves could say (see ``checked``), or only a bound is
    known (a beam). Of an average of log-weights it is the error of the bound that they
    estimate."""

    draws_stderr: float
    """The error as the draws tell it, nats: it says nothing of what their proposal
    never visits. 0 where nothing is drawn; ``inf`` if one draw is all there is."""

    effective_sample_size: float | None
    """In [1, num_samples]; None where nothing is sampled."""

    pareto_k: float | None
    """Shape of the weights' tail, unreliable above 0.7; None where nothing is sampled,
    or fewer than ``MIN_PARETO_SAMPLES`` positive weights tell nothing of a tail."""

    num_samples: int
    """K: samples, particles, or a beam's width."""

    num_tokens: int
    """Predicted tokens, the T of a perplexity."""

    bound: Bound
    """How ``log_evidence`` bounds log p(x)."""

    estimator: str
    """The estimator's name, such as "is" or "beam"."""

    log_weights: Sequence[float] = field(default=(), repr=False, hash=False)
    """Log-weights in nats in the order drawn, an ``array`` of eight bytes each; empty
    where there are none to combine with another input's."""

    upper: float | None = None
    """Upper bound of log p(x) on average over draws, nats; see ``bounded_above``."""

    at_least: float | None = None
    """Lower limit of log p(x), nats, by draws whose weights are bounded
    (``probability_interval``): with ``at_most`` it holds with a probability of 95 %,
    whenever drawing stopped. None where weights have no known maximum."""

    at_most: float | None = None
    """Upper limit of log p(x), likewise."""

    replicates: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Independent estimates whose mean it is, to first order, nats; one where nothing
    was drawn, none where they or the error are not known. Those of the options of a
    question are from the same draws. Records do not keep them."""

    draws_degrees: float = math.inf
    """Degrees of freedom of ``draws_stderr``: R - 1 where R replicates tell it, and
    intervals are Student's t; ``inf`` where it is taken for known."""

    def __post_init__(self) -> None:
        """Refuse NaN and the like, and pack the log-weights."""
        if not isinstance(self.log_weights, array):
            object.__setattr__(self, "log_weights", array("d", self.log_weights))
        if not math.isfinite(self.log_evidence):
            raise ValueError(f"log_evidence must be finite; got {self.log_evidence}")
        for error in (self.draws_stderr, 0.0 if self.stderr is None else self.stderr):
            if not error >= 0:
                raise ValueError(f"a standard error must be at least 0; got {error}")
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be at least 1; got {self.num_samples}")
        if not self.draws_degrees > 0:
            raise ValueError(f"draws_degrees must be above 0; got {self.draws_degrees}")
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be at least 0; got {self.num_tokens}")

    @property
    def missed(self) -> float | None:
        """Error by the mass that draws probably miss, nats: the rest of ``stderr``.

        It makes the estimate too low, so it does not average out over texts. None where
        the error is not known.
        """
        if self.stderr is None:
            return None
        return math.sqrt(max(self.stderr**2 - self.draws_stderr**2, 0.0))

    @property
    def perplexity(self) -> float:
        """This input's perplexity per predicted token.

        Raises:
            ValueError: If no token is predicted, or the model is unnormalised.
        """
        if self.bound is Bound.UNNORMALISED:
            raise ValueError(
                "an unnormalised score has no perplexity: compare it with those of "
                "distorted copies (contrastive entropy)"
            )
        if self.num_tokens == 0:
            raise ValueError("num_tokens is 0: no perplexity without predicted tokens")
        return perplexity(self.log_evidence, self.num_tokens)

    @classmethod
    def from_log_weights(
        cls,
        log_w: Tensor,
        *,
        num_tokens: int,
        estimator: str = "is",
        bound: Bound = Bound.STOCHASTIC_LOWER,
    ) -> Self:
        r"""Estimate log p(x) from K independent draws' log-weights.

        .. math:: \log\hat p(x) = \log \frac{1}{K} \sum_{k=1}^{K} w_k

        Biased downwards; a stochastic lower bound if K was decided before the draws.

        Args:
            log_w: Log-weights in nats, shape ``(K,)``, in the order drawn.
            num_tokens: Predicted tokens of the input.
            estimator: Its name.
            bound: :attr:`Bound.NONE` if the draws were stopped by looking at them or
                include a pilot.

        Returns:
            The record, whose error nothing has checked; its log-weights in float64.

        Raises:
            MissedSupportError: If all K weights are zero.
            TypeError: If ``log_w`` is not a floating-point tensor.
            ValueError: If ``log_w`` is not of shape ``(K,)`` with K >= 1, or a weight
                is NaN or ``+inf``.

        Example:
            >>> import torch
            >>> Estimate.from_log_weights(torch.tensor([-torch.inf]), num_tokens=3)
            Traceback (most recent call last):
            ...
            lm_latent_eval.estimators.estimate.MissedSupportError: the proposal ...

        Reference:
            Logan et al. (2020), section 2, equations 2 to 4.
        """
        num_samples = _checked_vector(log_w)
        estimated = log_evidence(log_w).item()
        if estimated == -math.inf:
            raise MissedSupportError(
                "the proposal misses the model's support: p(x, z) is 0 for all latents "
                "that were drawn, so log p(x) cannot be estimated. Draw more samples, "
                "or use a proposal that covers the model's latents"
            )
        told = int((log_w > -math.inf).sum()) >= MIN_PARETO_SAMPLES
        return cls(
            log_evidence=estimated,
            stderr=None,
            draws_stderr=stderr(log_w).item(),
            effective_sample_size=effective_sample_size(log_w).item(),
            pareto_k=pareto_k(log_w).item() if told else None,
            num_samples=num_samples,
            num_tokens=num_tokens,
            bound=bound,
            estimator=estimator,
            log_weights=array("d", in_float64(log_w.detach()).cpu().numpy().tobytes()),
        )

    @classmethod
    def from_beam(
        cls, log_joint: Tensor, *, num_tokens: int, estimator: str = "beam"
    ) -> Self:
        r"""Bound log p(x) from below by the mass of a beam's distinct latents.

        .. math:: \log \sum_{z \in B} p(x, z) \le \log \sum_{z} p(x, z) = \log p(x)

        Nothing in it is random, and how far below log p(x) it lies is unknown. The
        latents must be *distinct as p sees them*: two that differ only in what p never
        charges are one latent, and counting both can exceed log p(x).

        Args:
            log_joint: Log p(x, z) in nats of the distinct latents, shape ``(k,)``;
                ``-inf`` fills the places of a beam that found fewer.
            num_tokens: Predicted tokens of the input.
            estimator: Its name.

        Returns:
            The record: no standard error, effective sample size or Pareto k, and no
            log-weights, since joint probabilities are not weights.

        Raises:
            MissedSupportError: If p is zero on the whole beam.
            TypeError: If ``log_joint`` is not a floating-point tensor.
            ValueError: If ``log_joint`` is not of shape ``(k,)`` with k >= 1, or an
                entry is NaN or ``+inf``.

        Example:
            >>> import torch
            >>> beam = Estimate.from_beam(torch.tensor([0.2, 0.1]).log(), num_tokens=3)
            >>> round(beam.log_evidence, 4), str(beam.bound)
            (-1.204, 'strict lower')

        Reference:
            Logan et al. (2020), section 4, "Beam Marginalization".
        """
        width = _checked_vector(log_joint)
        bound = in_float64(log_joint).logsumexp(-1).item()
        if bound == -math.inf:
            raise MissedSupportError(
                "the beam misses the model's support: p(x, z) is 0 for all "
                f"{width} latents found, so log p(x) has no bound. "
                "Widen the beam, or search with a proposal that covers p's latents"
            )
        return cls(
            log_evidence=bound,
            stderr=None,
            draws_stderr=0.0,
            effective_sample_size=None,
            pareto_k=None,
            num_samples=width,
            num_tokens=num_tokens,
            bound=Bound.STRICT_LOWER,
            estimator=estimator,
        )

    @classmethod
    def exact(cls, log_p: float, *, num_tokens: int, estimator: str = "exact") -> Self:
        """Record a log p(x) that is known, in nats.

        Args:
            log_p: The logarithm of the probability.
            num_tokens: Predicted tokens of the input.
            estimator: The name of what found it.

        Raises:
            MissedSupportError: If it is ``-inf``: the text is impossible.

        Example:
            >>> estimate = Estimate.exact(-3.0, num_tokens=2)
            >>> estimate.stderr, str(estimate.bound)
            (0.0, 'exact')
        """
        if log_p == -math.inf:
            raise MissedSupportError(
                "p(x) is exactly 0: all latents were summed, and the model gives none "
                "of them and this text a probability. More samples change nothing"
            )
        return cls(
            log_evidence=log_p,
            stderr=0.0,
            draws_stderr=0.0,
            effective_sample_size=None,
            pareto_k=None,
            num_samples=1,
            num_tokens=num_tokens,
            bound=Bound.EXACT,
            estimator=estimator,
            replicates=(log_p,),
        )

    @classmethod
    def product(cls, factors: Sequence[Self]) -> Self:
        r"""Estimate the probability of independent parts, each estimated by itself.

        .. math:: \log\hat p(x_1 \cdots x_S) = \sum_s \log\hat p(x_s)

        A product of independent unbiased estimates is unbiased, and one of bounds in
        one direction is a bound in that direction, of the weakest kind among them.

        Args:
            factors: The estimates of S parts (sentences, say), from independent draws.

        Returns:
            The record: errors of draws add in squares, what they missed as it is, and
            the error is known where each part's is; effective sample size and Pareto k
            are those of the worst part, log-weights and replicates are sums over parts.

        Raises:
            ValueError: If there is no part.

        Example:
            >>> import torch
            >>> a, b = (
            ...     Estimate.from_log_weights(torch.tensor(w).log(), num_tokens=2)
            ...     for w in ([0.2, 0.4], [0.5, 0.5])
            ... )
            >>> both = Estimate.product([a, b])
            >>> round(math.exp(both.log_evidence), 4), both.num_tokens
            (0.15, 4)
            >>> both.draws_stderr == a.draws_stderr
            True
        """
        if not factors:
            raise ValueError("a product of no estimates")
        if len(factors) == 1:
            return factors[0]
        drawn = math.hypot(*(factor.draws_stderr for factor in factors))
        missed = _if_all(math.fsum, [factor.missed for factor in factors])
        return cls(
            log_evidence=math.fsum(factor.log_evidence for factor in factors),
            stderr=None if missed is None else math.hypot(drawn, missed),
            draws_stderr=drawn,
            effective_sample_size=_worst(
                min, [factor.effective_sample_size for factor in factors]
            ),
            pareto_k=_worst(max, [factor.pareto_k for factor in factors]),
            num_samples=max(factor.num_samples for factor in factors),
            num_tokens=sum(factor.num_tokens for factor in factors),
            bound=Bound.weakest(factor.bound for factor in factors),
            estimator="+".join(sorted({factor.estimator for factor in factors})),
            log_weights=_sums(factors),
            upper=_if_all(math.fsum, [factor.upper for factor in factors]),
            replicates=_replicates([factor.replicates for factor in factors]),
            draws_degrees=pooled_degrees(
                (factor.draws_stderr, factor.draws_degrees) for factor in factors
            ),
        )

    def bounded_above(self, other: Self) -> Self:
        r"""Add an upper bound of log p(x), where the estimate has an error.

        .. math:: \log p \le \log\psi + \frac{p}{\psi} - 1

        for any psi, since the logarithm lies below its tangents. With psi this estimate
        and an unbiased p-hat of other draws, the right side holds on average over
        these, also where it is left out by what the draws of psi are: they say nothing
        of p-hat. That is no confidence: where draws miss p, p-hat is too low with them,
        nearly always. So there is none where the error is not known.

        Args:
            other: Of other draws.

        Example:
            >>> import torch
            >>> from dataclasses import replace
            >>> estimate = Estimate.from_log_weights(torch.zeros(10), num_tokens=3)
            >>> other = Estimate.from_log_weights(torch.full((9,), 0.1), num_tokens=3)
            >>> estimate.bounded_above(other).upper is None
            True
            >>> round(replace(estimate, stderr=0.1).bounded_above(other).upper, 4)
            0.1052
        """
        if self.stderr is None or self.bound is Bound.NONE:
            return self
        ratio = math.exp(min(other.log_evidence - self.log_evidence, 700.0))
        return replace(self, upper=self.log_evidence + ratio - 1)


def _if_all(
    together: Callable[[list[float]], float], values: Sequence[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    return together(known) if len(known) == len(values) else None


def _worst(
    choose: Callable[[list[float]], float], values: Sequence[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _sums(factors: Sequence[Estimate]) -> tuple[float, ...]:
    """Add log-weights draw by draw, as many as every part has that is not exact."""
    sure = [f.log_evidence for f in factors if f.bound is Bound.EXACT]
    rows = [f.log_weights for f in factors if f.bound is not Bound.EXACT]
    return tuple(math.fsum([*column, *sure]) for column in zip(*rows, strict=False))


def _replicates(factors: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Add factors replicate by replicate; () if those of one are not known."""
    number = max(map(len, factors))
    rows = [row * number if len(row) == 1 else row for row in factors]
    same = all(len(row) == number for row in rows)
    return tuple(map(math.fsum, zip(*rows, strict=True))) if same else ()


def _checked_vector(log_w: Tensor) -> int:
    """Return K of one input's checked log-weights, shape (K,)."""
    num_samples = checked_weights(log_w)
    if log_w.ndim != 1:
        raise ValueError(
            f"expected one input's log-weights, shape (K,); got {tuple(log_w.shape)}"
        )
    return num_samples
