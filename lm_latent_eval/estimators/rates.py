r"""Information rates: one log-likelihood, per token, word, character, byte or sentence.

    nats per unit = -log p(x) / U        bits = nats / ln 2        perplexity = e^nats

A rate per word and one per character are the same information, divided by different
counts; base 2 and base e name the same perplexity. What a unit is, and whether the
ends of sentences and the spaces between words count as one, is the caller's to say.

Symbols: log p(x) -> ``log_likelihood``; U -> ``num_units``.
Source: Shannon (1951) for rates of letters and words; Graves (2013), section 3, for
words from characters.
"""

import math
from dataclasses import dataclass
from typing import Self


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
