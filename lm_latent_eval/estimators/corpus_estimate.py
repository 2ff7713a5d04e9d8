r"""A corpus's perplexity or bits per unit, with its standard errors and diagnostics.

    R = -sum_n log p-hat(x_n) / U

U counts tokens, words or bytes. Two things make R uncertain, and no one number says
both: which latents were drawn, and which texts these are.

Symbols: U -> ``num_units``; log p-hat(x_n) -> ``log_evidence`` of the estimates.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; the bias of
the logarithm is Jensen's, to second order; Student's t as in ``standard_errors``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.corpus import (
    certified_perplexity,
    corpus_weights,
    total_count,
)
from lm_latent_eval.estimators.estimate import Bound, Estimate
from lm_latent_eval.estimators.importance import (
    effective_sample_size,
    log_evidence,
    log_grid,
    sample_size_curve,
    stderr,
)
from lm_latent_eval.estimators.rates import perplexity
from lm_latent_eval.estimators.standard_errors import (
    correct_for_sizes,
    pooled_degrees,
    widened,
)

Names: TypeAlias = Sequence[str] | Sequence[int] | NDArray[np.int64]
"""Names of streams, one a text."""


@dataclass(frozen=True)
class EstimateColumns:
    """What the errors of a corpus are made of, a column each: N texts, float64."""

    log_evidence: NDArray[np.float64]
    draws_stderr: NDArray[np.float64]
    draws_degrees: NDArray[np.float64]
    missed: NDArray[np.float64]
    """NaN where it is not known."""
    is_logarithm: NDArray[np.bool_]
    """Whether ``log_evidence`` is the logarithm of an estimate of p: an average of
    log-weights is not, and has not its bias."""

    @classmethod
    def of(cls, estimates: Sequence[Estimate]) -> Self:
        """Return the columns of estimates."""
        missed = (math.nan if e.missed is None else e.missed for e in estimates)
        return cls(
            np.array([e.log_evidence for e in estimates], dtype=np.float64),
            np.array([e.draws_stderr for e in estimates], dtype=np.float64),
            np.array([e.draws_degrees for e in estimates], dtype=np.float64),
            np.fromiter(missed, dtype=np.float64),
            np.array([e.bound is not Bound.ESTIMATED_LOWER for e in estimates], bool),
        )

    def of_texts(self, which: NDArray[np.bool_] | slice) -> Self:
        """Return the columns of some texts."""
        return type(self)(
            self.log_evidence[which],
            self.draws_stderr[which],
            self.draws_degrees[which],
            self.missed[which],
            self.is_logarithm[which],
        )

    def __len__(self) -> int:
        return len(self.log_evidence)


@dataclass(frozen=True)
class CorpusRate:
    """A number of a corpus, and its errors in the same unit."""

    value: float
    stderr: float | None
    """Over texts, with the Monte Carlo error in it: what to expect of other texts. None
    where the latter is not known, and of a single text."""
    monte_carlo_stderr: float | None
    """Standard error on these texts, for other draws of the latents and mass that they
    may have missed; None if it cannot be estimated for one text."""
    draws_stderr: float
    """Standard error from the spread of the draws alone, without missed mass."""

    @classmethod
    def nats(
        cls,
        estimates: Sequence[Estimate] | EstimateColumns,
        num_units: Tensor,
        streams: Names | None = None,
    ) -> Self:
        r"""Return nats a unit.

        .. math::
            \mathrm{se}_\text{MC}^2 = \frac{1}{U^2} \Bigl( \sum_n d_n^2
            + \bigl(\sum_n \tfrac12 d_n^2 + m_n\bigr)^2 \Bigr), \qquad
            \mathrm{se}_\text{texts}^2 = \frac{1}{U^2} \Bigl( c \sum_n (l_n + R\, U_n)^2
            + \bigl(\sum_n \tfrac12 d_n^2 + m_n\bigr)^2 \Bigr)

        with c = N / (N - 1) for texts of one length, and more where a few hold most of
        the units (``correct_for_sizes``), a text's error by its draws d_n, and what
        they are likely to have missed, m_n, such that its error is their root sum of
        squares. Errors of draws average out, and add in squares. What is missed, and
        the bias of a logarithm, about half a variance, have one direction and add as
        they are. Where the d_n are from few replicates, the root of their sum of
        squares is widened so that 1.96 of it are the interval of Student's t, which for
        many texts is no more than a normal one. A text's l_n = log p-hat varies by its
        draws as well, so what differs from text to text has d_n in it.

        Args:
            estimates: Of N texts.
            num_units: Of each text, shape ``(N,)``.
            streams: Which random numbers each text used: errors of those that share
                them add as they are, and they count as one text, of which the corpus
                holds copies. None: each has its own.

        Raises:
            ValueError: If there is no text, not one count a text, or no unit.

        Example:
            >>> import torch
            >>> exact = [Estimate.exact(-n, num_tokens=1) for n in (2.0, 3.0, 4.0)]
            >>> rate = CorpusRate.nats(exact, torch.tensor([1, 1, 1]))
            >>> rate.value, round(rate.stderr, 4), rate.monte_carlo_stderr
            (3.0, 0.5774, 0.0)
        """
        texts = estimates
        if not isinstance(texts, EstimateColumns):
            texts = EstimateColumns.of(texts)
        total = total_count(num_units, "num_units", len(texts))
        value = -math.fsum(texts.log_evidence) / total
        units = num_units.double().numpy()
        stream = _copies(streams)
        errors = _sums(stream, texts.draws_stderr)
        of_drawn = np.where(texts.draws_stderr > 0, texts.draws_degrees, math.inf)
        least = _least(stream, of_drawn)
        some = errors > 0
        degrees = pooled_degrees(zip(errors[some], least[some], strict=True))
        drawn = widened(_norm(errors), degrees)
        bias = float((texts.draws_stderr[texts.is_logarithm] ** 2).sum()) / 2
        loss = float(texts.missed.sum())
        known, spread = not math.isnan(loss), None
        correction, _ = correct_for_sizes(_sums(stream, units))
        if known and correction < math.inf:
            residuals = _sums(stream, texts.log_evidence + value * units)
            over_texts = _norm(residuals) * math.sqrt(correction)
            spread = math.hypot(max(over_texts, drawn), bias + loss) / total
        return cls(
            value,
            stderr=spread,
            monte_carlo_stderr=math.hypot(drawn, bias + loss) / total
            if known
            else None,
            draws_stderr=math.hypot(drawn, bias) / total,
        )

    @classmethod
    def bits(
        cls,
        estimates: Sequence[Estimate] | EstimateColumns,
        num_units: Tensor,
        streams: Names | None = None,
    ) -> Self:
        """Return bits a unit; see ``nats``."""
        rate = cls.nats(estimates, num_units, streams)
        return rate._become(rate.value / math.log(2), slope=1 / math.log(2))

    @classmethod
    def perplexity(
        cls,
        estimates: Sequence[Estimate] | EstimateColumns,
        num_units: Tensor,
        streams: Names | None = None,
    ) -> Self:
        """Return the perplexity per unit, its errors by the delta method; see ``nats``.

        Reference:
            Logan et al. (2020), section 3, equation 5: their instance level.
        """
        rate = cls.nats(estimates, num_units, streams)
        value = perplexity(-rate.value, 1)
        return rate._become(value, slope=value)

    def _become(self, value: float, *, slope: float) -> Self:
        """Return a function of the rate, its errors by the delta method."""

        def scaled(error: float) -> float:
            # An infinite perplexity times no error at all is no error.
            return slope * error if error else 0.0

        over_texts, known = self.stderr, self.monte_carlo_stderr
        return replace(
            self,
            value=value,
            stderr=None if over_texts is None else scaled(over_texts),
            monte_carlo_stderr=None if known is None else scaled(known),
            draws_stderr=scaled(self.draws_stderr),
        )


def _copies(names: Names | None) -> NDArray[np.int64] | None:
    """Return the number of each text's name among all names, (N,); None: all differ."""
    if names is None:
        return None
    every = names if isinstance(names, np.ndarray) else np.array([*names])
    ordered = np.sort(every)
    if (ordered[1:] != ordered[:-1]).all():
        return None  # the usual case, which takes a fourth of the memory
    return np.unique(every, return_inverse=True)[1].reshape(-1)


def _sums(
    stream: NDArray[np.int64] | None, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sum of the values of each stream."""
    return values if stream is None else np.bincount(stream, values).astype(np.float64)


def _least(
    stream: NDArray[np.int64] | None, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the least of the values of each stream."""
    if stream is None:
        return values
    least = np.full(int(stream.max()) + 1, math.inf)
    np.minimum.at(least, stream, values)
    return least


def _norm(values: NDArray[np.float64]) -> float:
    """Return the root of the sum of squares, none of which overflows."""
    return float(scipy.linalg.norm(values, check_finite=False))


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
    """Effective sample size of the products; 1 is as good as one draw."""
    corpus_num_samples: int
    """K of the products: as many draws of every input as the least has."""
    certified: float
    """Upper limit of the true perplexity at ``confidence``."""
    confidence: float
    estimates: tuple[Estimate, ...]
    """Estimate of each input: effective sample size, standard error, Pareto k."""
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
        rows = in_float64(torch.stack([row[:least] for row in log_w]))
        products = corpus_weights(rows)
        sizes = log_grid(least)
        curve = zip(sizes, sample_size_curve(rows, sizes).sum(0).tolist(), strict=True)
        return cls(
            instance=CorpusRate.perplexity(estimates, num_tokens),
            corpus=_corpus_level(products, total),
            corpus_effective_sample_size=effective_sample_size(products).item(),
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


def _estimate(index: int, log_w: Tensor, num_tokens: int) -> Estimate:
    """Return one input's estimate, or say which input has none."""
    try:
        return Estimate.from_log_weights(log_w, num_tokens=num_tokens)
    except ValueError as err:
        raise type(err)(f"input {index}: {err}") from err


def _corpus_level(products: Tensor, total: int) -> CorpusRate | None:
    log_p = log_evidence(products).item()
    if log_p == -math.inf:
        return None
    value = perplexity(log_p, total)
    relative = stderr(products).item() / total
    return CorpusRate(
        value,
        stderr=None,
        monte_carlo_stderr=None,
        draws_stderr=value * relative if relative else 0.0,
    )
