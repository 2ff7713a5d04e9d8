r"""Information rates: one log-likelihood, per token, word, character, byte or sentence.

    nats per unit = -log p(x) / U        bits = nats / ln 2        perplexity = e^nats

A rate per word and one per character are the same information, divided by different
counts; base 2 and base e name the same perplexity. What a unit is, and whether the
ends of sentences and the spaces between words count as one, is the caller's to say.

Symbols: log p(x) -> ``log_likelihood``; U -> ``num_units``; log S_n -> ``capital``.
Source: Shannon (1951) for rates of letters and words; Cover and King (1978) for
gambling; Graves (2013), section 3, for words from characters.
"""

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_floating


def perplexity(log_p: float, num_tokens: int) -> float:
    r"""Return the perplexity per token of a text.

    .. math:: \exp\Bigl(-\frac{\log p(x)}{T}\Bigr)

    Args:
        log_p: Log p of the whole text, or an estimate of it, nats.
        num_tokens: T, or how many there are of any other unit; at least 1.

    Returns:
        The weighted branching factor; ``inf`` above what float64 can hold, and where
        ``log_p`` is ``-inf``.

    Raises:
        ValueError: If no token is predicted.

    Example:
        >>> round(perplexity(10 * math.log(1 / 6), num_tokens=10), 6)
        6.0
        >>> perplexity(-800.0, num_tokens=1)
        inf
    """
    if num_tokens < 1:
        raise ValueError("no token is predicted: no perplexity")
    try:
        return math.exp(-log_p / num_tokens)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class InformationRate:
    """Information per unit, with its standard error.

    Example:
        Ten rolls of a fair die: each of six numbers is as likely, and six is what the
        perplexity says.

        >>> rate = InformationRate.of(10 * math.log(1 / 6), num_units=10)
        >>> round(rate.perplexity, 6), round(rate.bits, 3)
        (6.0, 2.585)

        A die that shows six in 7 of 12 rolls, and a model that knows it: still six
        faces, but a *weighted* branching factor below four. With 99 sixes in 100 rolls
        there is next to nothing to choose from.

        >>> log_p = 7 * math.log(7 / 12) + 5 * math.log(1 / 12)
        >>> round(InformationRate.of(log_p, num_units=12).perplexity, 2)
        3.86
        >>> log_p = 99 * math.log(0.99) + math.log(1 / 500)
        >>> round(InformationRate.of(log_p, num_units=100).perplexity, 2)
        1.07

        A sentence's probability, its geometric mean over four words, and the inverse.

        >>> rate = InformationRate.of(math.log(0.4 * 0.27 * 0.55 * 0.79), num_units=4)
        >>> round(math.exp(-rate.nats), 3), round(rate.perplexity, 2)
        (0.465, 2.15)
    """

    nats: float
    """Nats per unit."""

    nats_stderr: float = 0.0
    """Standard error of ``nats``: Monte Carlo, sampling or none, as was given."""

    @classmethod
    def of(cls, log_likelihood: float, num_units: int, *, stderr: float = 0.0) -> Self:
        r"""Divide a total log-likelihood among the units of its text.

        .. math:: -\frac{\log p(x)}{U}

        Args:
            log_likelihood: Log p of the whole text, nats.
            num_units: U, at least 1.
            stderr: Standard error of ``log_likelihood``, nats.

        Raises:
            ValueError: If the log-likelihood is above 0 or not finite, its error
                negative or NaN, or no unit is counted.

        Example:
            >>> InformationRate.of(123.4, num_units=10)
            Traceback (most recent call last):
            ...
            ValueError: log_likelihood is 123.4: the logarithm of a probability is ...
        """
        if not math.isfinite(log_likelihood):
            raise ValueError(f"log_likelihood must be finite; got {log_likelihood}")
        if log_likelihood > 0:
            raise ValueError(
                f"log_likelihood is {log_likelihood}: the logarithm of a probability "
                "is at most 0. Is this a loss? Then change its sign"
            )
        if not 0 <= stderr < math.inf:
            raise ValueError(f"stderr must be finite and at least 0; got {stderr}")
        if num_units < 1:
            raise ValueError(f"num_units must be at least 1; got {num_units}")
        return cls(nats=-log_likelihood / num_units, nats_stderr=stderr / num_units)

    @classmethod
    def of_bits(cls, bits: float, *, stderr: float = 0.0) -> Self:
        """Read a published rate in bits per unit.

        Example:
            One bit per character is a character perplexity of two.

            >>> round(InformationRate.of_bits(1.0).perplexity, 6)
            2.0
        """
        return cls(nats=bits * math.log(2), nats_stderr=stderr * math.log(2))

    @classmethod
    def of_perplexity(cls, perplexity: float, *, stderr: float = 0.0) -> Self:
        """Read a published perplexity per unit.

        Raises:
            ValueError: If it is below 1 or not finite.

        Example:
            >>> round(InformationRate.of_perplexity(32.0).bits, 6)
            5.0
        """
        if not 1 <= perplexity < math.inf:
            raise ValueError(f"a perplexity is finite and at least 1; got {perplexity}")
        return cls(nats=math.log(perplexity), nats_stderr=stderr / perplexity)

    @property
    def bits(self) -> float:
        """Bits per unit."""
        return self.nats / math.log(2)

    @property
    def bits_stderr(self) -> float:
        """Standard error of ``bits``."""
        return self.nats_stderr / math.log(2)

    @property
    def perplexity(self) -> float:
        """The weighted branching factor; ``inf`` above what float64 can hold."""
        return perplexity(-self.nats, 1)

    @property
    def perplexity_stderr(self) -> float:
        """Standard error of ``perplexity``, by the delta method."""
        return self.perplexity * self.nats_stderr if self.nats_stderr else 0.0

    def per(self, units: float) -> Self:
        r"""Return the rate of a longer unit that is ``units`` of these long.

        .. math:: \text{nats per word} = \text{nats per character} \times
            \frac{\text{characters}}{\text{words}}

        Count what the shorter rate counts: a character rate over text with spaces
        needs the mean length of a word *with* its space. Divide (``units`` below 1)
        to go the other way.

        Args:
            units: How many of this rate's units one of the other holds, on average
                over the same text; above 0.

        Raises:
            ValueError: If ``units`` is not above 0 and finite.

        Example:
            >>> character = InformationRate.of_bits(1.0)
            >>> round(character.per(5).perplexity, 6)  # words of five characters
            32.0
            >>> round(character.per(5.6).perplexity, 1)  # spaces counted
            48.5
            >>> word = InformationRate.of_bits(11.82)  # of words chosen by frequency
            >>> round(word.per(1 / 4.5).bits, 2)  # words of 4.5 letters
            2.63
        """
        if not 0 < units < math.inf:
            raise ValueError(f"units must be finite and above 0; got {units}")
        return type(self)(self.nats * units, self.nats_stderr * units)


def branching_factor(probabilities: Tensor) -> Tensor:
    r"""Return the perplexity of a distribution: how many equal choices it is like.

    .. math:: \exp\Bigl(-\sum_{v} p_v \log p_v\Bigr)

    Args:
        probabilities: p, shape ``(..., V)``; each row totals 1.

    Returns:
        A number of choices in [1, V], shape ``(...)``, float64.

    Raises:
        TypeError: If ``probabilities`` is not a floating-point tensor.
        ValueError: If one is negative or not finite, or a row does not total 1.

    Example:
        >>> import torch
        >>> branching_factor(torch.full((6,), 1 / 6, dtype=torch.float64))
        tensor(6.0000, dtype=torch.float64)
        >>> loaded = torch.tensor([7.0, 1, 1, 1, 1, 1], dtype=torch.float64) / 12
        >>> branching_factor(loaded)  # still six faces
        tensor(3.8566, dtype=torch.float64)
    """
    p = in_float64(checked_floating(probabilities, "probabilities"))
    if not ((p >= 0) & p.isfinite()).all():
        raise ValueError("probabilities must be finite and at least 0")
    total = p.sum(-1)
    tolerance = 1e-6 if probabilities.element_size() < 8 else 1e-9
    if not ((total - 1).abs() <= tolerance).all():
        raise ValueError(f"probabilities must total 1; got {total.tolist()}")
    entropy: Tensor = -(p.xlogy(p)).sum(-1)
    return entropy.exp()


def log_capital(log_likelihood: float, num_symbols: int, alphabet_size: int) -> float:
    r"""Return the log of the capital that a gambler has after betting on a text.

    .. math:: \log S_n = n \log A + \log b(x_1 \cdots x_n)

    One unit at the start, divided among the A symbols in proportion to b(. | past) at
    every step, with what lies on the right one paid A-for-1. A model's log-likelihood
    is such a bet.

    Args:
        log_likelihood: Log b of the text, nats.
        num_symbols: n.
        alphabet_size: A.

    Returns:
        Nats; 0 for one who bets the same on every symbol.

    Raises:
        ValueError: If the text or the alphabet is empty.

    Example:
        >>> log_capital(math.log(1 / 27) * 100, num_symbols=100, alphabet_size=27)
        0.0

    Reference:
        Cover and King (1978).
    """
    if num_symbols < 1 or alphabet_size < 1:
        raise ValueError(
            "a bet needs a symbol and an alphabet; got "
            f"num_symbols {num_symbols} and alphabet_size {alphabet_size}"
        )
    return num_symbols * math.log(alphabet_size) + log_likelihood


def gambling_rate(
    capital: float, num_symbols: int, alphabet_size: int
) -> InformationRate:
    r"""Return the entropy rate that a gambler's capital bounds from above.

    .. math:: \hat H = \Bigl(1 - \frac{1}{n} \log_A S_n\Bigr) \log A

    No gambler can expect more capital than the entropy allows: E[H-hat] is at least
    the rate H of the source, for any way of betting that was fixed beforehand.

    Args:
        capital: Log S_n, nats.
        num_symbols: n.
        alphabet_size: A, so many for one are the odds.

    Raises:
        ValueError: If the text or the alphabet is empty, or the capital is more than
            all odds together pay.

    Example:
        One who doubles the capital with every letter:

        >>> rate = gambling_rate(100 * math.log(2), 100, alphabet_size=27)
        >>> round(rate.bits, 4)  # log2 27 - 1
        3.7549

    Reference:
        Cover and King (1978).
    """
    log_likelihood = capital - log_capital(0.0, num_symbols, alphabet_size)
    return InformationRate.of(log_likelihood, num_symbols)
