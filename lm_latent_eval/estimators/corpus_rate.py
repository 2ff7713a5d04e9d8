r"""A corpus's perplexity or bits a unit, with each error under its own name.

    R = -sum_n log p-hat(x_n) / U

U counts tokens, words or bytes. Two things make R uncertain, and no one number says
both: which latents were drawn, and which texts these are.

Symbols: U -> ``num_units``; log p-hat(x_n) -> ``log_evidence`` of the estimates.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; the bias of
the logarithm is Jensen's, to second order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from lm_latent_eval.estimators.corpus import total_count
from lm_latent_eval.estimators.estimate import Estimate, together
from lm_latent_eval.estimators.rates import perplexity


@dataclass(frozen=True)
class CorpusRate:
    """A number of a corpus, and its errors in the same unit."""

    value: float
    stderr: float | None
    """Over texts, with the draws' part in it: what to expect of other texts. None where
    the draws' part is not known, and of a single text."""
    monte_carlo_stderr: float | None
    """Of these texts, from the draws of latents and what they may have missed; None
    where that cannot be estimated of one of them."""
    draws_stderr: float
    """The same as the draws tell it, who know nothing of what they miss."""

    @classmethod
    def nats(cls, estimates: Sequence[Estimate], num_units: Tensor) -> Self:
        r"""Return nats a unit.

        .. math::
            \mathrm{se}_\text{texts}^2 = \frac{N}{N-1}
            \frac{\sum_n (l_n + R\, U_n)^2}{U^2}, \qquad
            \mathrm{se}_\text{MC}^2 = \frac{1}{U^2} \Bigl( \sum_n \mathrm{se}_n^2
            + \bigl(\sum_n \tfrac12 \mathrm{se}_{\text{draws}, n}^2\bigr)^2 \Bigr)

        The errors of texts average out, and add in squares. The bias of their
        logarithms, about half a variance each, has one direction, and adds as it is.
        A text's l_n = log p-hat varies by its draws as well, so what differs from text
        to text has the draws' part in it already.

        Args:
            estimates: Of N texts.
            num_units: Of each text, shape ``(N,)``.

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
        checked = together([e.stderr for e in estimates])
        drawn = math.hypot(*(e.draws_stderr for e in estimates))
        bias = drawn**2 / 2
        known = None if checked is None else math.hypot(checked, bias) / total
        return cls(
            value,
            stderr=_over_texts(estimates, num_units.tolist(), value, known),
            monte_carlo_stderr=known,
            draws_stderr=math.hypot(drawn, bias) / total,
        )

    @classmethod
    def bits(cls, estimates: Sequence[Estimate], num_units: Tensor) -> Self:
        """Return bits a unit; see ``nats``."""
        rate = cls.nats(estimates, num_units)
        return rate._become(rate.value / math.log(2), slope=1 / math.log(2))

    @classmethod
    def perplexity(cls, estimates: Sequence[Estimate], num_units: Tensor) -> Self:
        """Return the perplexity per unit, its errors by the delta method; see ``nats``.

        Reference:
            Logan et al. (2020), section 3, equation 5: their instance level.
        """
        rate = cls.nats(estimates, num_units)
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


def _over_texts(
    estimates: Sequence[Estimate],
    units: Sequence[int],
    rate: float,
    monte_carlo_stderr: float | None,
) -> float | None:
    count = len(estimates)
    if monte_carlo_stderr is None or count == 1:
        return None
    spread = math.hypot(
        *(e.log_evidence + rate * u for e, u in zip(estimates, units, strict=True))
    )
    spread *= math.sqrt(count / (count - 1)) / sum(units)
    return max(spread, monte_carlo_stderr)


__all__ = ["CorpusRate"]
