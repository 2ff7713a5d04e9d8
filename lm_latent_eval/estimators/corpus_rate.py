r"""A corpus's perplexity or bits per unit, with its standard errors.

    R = -sum_n log p-hat(x_n) / U

U counts tokens, words or bytes. Two things make R uncertain, and no one number says
both: which latents were drawn, and which texts these are.

Symbols: U -> ``num_units``; log p-hat(x_n) -> ``log_evidence`` of the estimates.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; the bias of
the logarithm is Jensen's, to second order; Student's t as in ``degrees``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from lm_latent_eval.estimators.bound import Bound
from lm_latent_eval.estimators.corpus import total_count
from lm_latent_eval.estimators.degrees import pooled_degrees, widened
from lm_latent_eval.estimators.estimate import Estimate
from lm_latent_eval.estimators.rates import perplexity


@dataclass(frozen=True)
class CorpusRate:
    """A number of a corpus, and its errors in the same unit."""

    value: float
    stderr: float | None
    """Over texts, with the Monte Carlo error in it: what to expect of other texts. None
    where the latter is not known, and of a single text."""
    monte_carlo_stderr: float | None
    """Of these texts, from the draws of latents and what they may have missed; None
    where that cannot be estimated of one of them."""
    draws_stderr: float
    """The same as the draws tell it; what they miss is not in it."""

    @classmethod
    def nats(
        cls,
        estimates: Sequence[Estimate],
        num_units: Tensor,
        streams: Sequence[str] | None = None,
    ) -> Self:
        r"""Return nats a unit.

        .. math::
            \mathrm{se}_\text{MC}^2 = \frac{1}{U^2} \Bigl( \sum_n d_n^2
            + \bigl(\sum_n \tfrac12 d_n^2 + m_n\bigr)^2 \Bigr), \qquad
            \mathrm{se}_\text{texts}^2 = \frac{1}{U^2} \Bigl( \frac{N}{N-1}
            \sum_n (l_n + R\, U_n)^2 + \bigl(\sum_n \tfrac12 d_n^2 + m_n\bigr)^2
            \Bigr)

        with a text's error by its draws d_n, and what they are likely to have missed,
        m_n, such that its error is their root sum of squares. Errors of draws average
        out, and add in squares. What is missed, and the bias of a logarithm, about half
        a variance, have one direction and add as they are. Where few replicates told
        the d_n, the root of their sum of squares is widened so that 1.96 of it are the
        interval of Student's t, which for many texts is no more than a normal one. A
        text's l_n = log p-hat
        varies by its draws as well, so what differs from text to text has d_n in it.

        Args:
            estimates: Of N texts.
            num_units: Of each text, shape ``(N,)``.
            streams: Which random numbers each text used: errors of those that share
                them add as they are. None: each has its own.

        Raises:
            ValueError: If there is no text, not one count a text, or no unit.

        Example:
            >>> import torch
            >>> exact = [Estimate.exact(-n, num_tokens=1) for n in (2.0, 3.0, 4.0)]
            >>> rate = CorpusRate.nats(exact, torch.tensor([1, 1, 1]))
            >>> rate.value, round(rate.stderr, 4), rate.monte_carlo_stderr
            (3.0, 0.5774, 0.0)
        """
        total = total_count(num_units, "num_units", len(estimates))
        value = -math.fsum(e.log_evidence for e in estimates) / total
        shared: dict[str | int, tuple[float, float]] = {}
        for n, estimate in enumerate(estimates):
            stream = streams[n] if streams else n
            error, degrees = shared.get(stream, (0.0, math.inf))
            if estimate.draws_stderr:
                error += estimate.draws_stderr
                degrees = min(degrees, estimate.draws_degrees)
            shared[stream] = error, degrees
        drawn = math.hypot(*(error for error, _ in shared.values()))
        drawn = widened(drawn, pooled_degrees(shared.values()))
        # An average of log-weights is no logarithm of an estimate: it has no such bias.
        logarithms = [e for e in estimates if e.bound is not Bound.ESTIMATED_LOWER]
        bias = math.fsum(e.draws_stderr**2 for e in logarithms) / 2
        missed = [e.missed for e in estimates]
        loss = math.fsum(m for m in missed if m is not None)
        spread = None
        if None not in missed and len(estimates) > 1:
            over_texts = _spread(estimates, num_units.tolist(), value)
            spread = math.hypot(max(over_texts, drawn), bias + loss) / total
        return cls(
            value,
            stderr=spread,
            monte_carlo_stderr=None
            if None in missed
            else math.hypot(drawn, bias + loss) / total,
            draws_stderr=math.hypot(drawn, bias) / total,
        )

    @classmethod
    def bits(
        cls,
        estimates: Sequence[Estimate],
        num_units: Tensor,
        streams: Sequence[str] | None = None,
    ) -> Self:
        """Return bits a unit; see ``nats``."""
        rate = cls.nats(estimates, num_units, streams)
        return rate._become(rate.value / math.log(2), slope=1 / math.log(2))

    @classmethod
    def perplexity(
        cls,
        estimates: Sequence[Estimate],
        num_units: Tensor,
        streams: Sequence[str] | None = None,
    ) -> Self:
        """Return the perplexity per unit, its errors by the delta method; see ``nats``.

        Reference:
            Logan et al. (2020), section 3, equation 5: their instance level.
        """
        rate = cls.nats(estimates, num_units, streams)
        value = perplexity(-rate.value, 1)
        return rate._become(value, slope=value)

    def _become(self, value: float, *, slope: float) -> Self:
        """Return a function of the rate, whose errors grow by its derivative."""

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


def _spread(estimates: Sequence[Estimate], units: Sequence[int], rate: float) -> float:
    """Return what differs from text to text, as an error of their sum, nats."""
    count = len(estimates)
    residuals = (
        e.log_evidence + rate * u for e, u in zip(estimates, units, strict=True)
    )
    return math.hypot(*residuals) * math.sqrt(count / (count - 1))
