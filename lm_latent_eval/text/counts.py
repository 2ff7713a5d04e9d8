r"""Sentences and lengths of a text, and its entropy alone.

Shannon's F_N, the entropy of a symbol after the N - 1 before it, falls to the entropy
rate as N grows. Computed from one text's frequencies it falls too far: a context seen
once seems to predict its symbol for sure. A gambler knows only what came before, so
that capital bounds the entropy rate from above.

Symbols: N -> ``order``; x_1 .. x_T -> ``symbols``; b -> the bet; A -> ``alphabet``.
Departures: Shannon's tables hold frequencies of other texts, and Cover and King's
gamblers were people; here both read the text at hand, and the bets are those of an
adaptive n-gram model.
Source: Shannon (1951), "Prediction and entropy of printed English", equation 1; Cover
and King (1978), "A convergent gambling estimate of the entropy of English"; MacKay and
Peto (1995), "A hierarchical Dirichlet language model", for the bets.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sentencex import segment

from lm_latent_eval.estimators.rates import InformationRate
from lm_latent_eval.text.words import checked_strings, encodable


def sentence_starts(text: str, language: str = "en") -> list[int]:
    """Start of each sentence, in characters.

    White space between sentences belongs to the one before.

    Args:
        text: A document.
        language: Code of its language, for abbreviations.

    Example:
        >>> text = "Dr. Smith left. It rained! (He said.)"
        >>> [text[start:] for start in sentence_starts(text)][1:]
        ['It rained! (He said.)', '(He said.)']
    """
    # The library cuts by bytes, and fails within white space of several.
    plain = re.sub(r"[^\S\x00-\x7f]", " ", encodable(text))
    parts = list(segment(language, plain))
    starts = accumulate(map(len, parts), initial=0)
    return [s for s, part in zip(starts, parts, strict=False) if part.strip()]


def line_starts(text: str) -> list[int]:
    r"""Start of each line that is not blank, in characters.

    Example:
        >>> line_starts("it rained\n\nhe said\n")
        [0, 11]
    """
    return [line.start() for line in re.finditer(r"^.*\S", text, re.MULTILINE)]


@dataclass(frozen=True)
class Counts:
    """Total lengths of texts.

    Example:
        >>> Counts.of(["Dr. Ångström left. It rained!"])
        Counts(sentences=2, words=5, characters=29, bytes=31)
    """

    sentences: int
    words: int
    """Number of words between white space."""
    characters: int
    """Number of code points, white space included."""
    bytes: int
    """Number of bytes in UTF-8."""

    @classmethod
    def of(cls, texts: Sequence[str], *, language: str = "en") -> Counts:
        """Count the units of texts.

        Args:
            texts: Strings.
            language: Their language's code, for the ends of sentences.

        Raises:
            TypeError: If ``texts`` is no list of strings.
        """
        texts = checked_strings(texts)
        return cls(
            sentences=sum(len(sentence_starts(text, language)) for text in texts),
            words=sum(len(text.split()) for text in texts),
            characters=sum(map(len, texts)),
            bytes=sum(len(encodable(text).encode()) for text in texts),
        )


LETTERS = string.ascii_lowercase + " "
"""Shannon's alphabet of 27 symbols."""


def letters(text: str) -> str:
    """Write a text in 27 symbols: letters in lower case, one space for all else.

    Accents are dropped; letters that have no base among a to z become spaces.

    Example:
        >>> letters("Café no. 5,  ÉTÉ!")
        'cafe no ete'
    """
    plain = unicodedata.normalize("NFKD", text).lower()
    kept = (c for c in plain if not unicodedata.combining(c))
    return " ".join("".join(c if c in LETTERS else " " for c in kept).split())


@dataclass(frozen=True)
class NgramEntropy:
    """One of Shannon's approximations to the entropy of a language."""

    order: int
    """N; 0 for log of the number of distinct symbols."""
    rate: InformationRate
    """F_N, per symbol."""
    share_unique: float
    """Share of predicted symbols whose context occurs once, so that it seems to predict
    for sure; unless it is small, F_N is far too low."""


def ngram_entropies(symbols: Sequence[Hashable], max_order: int) -> list[NgramEntropy]:
    r"""Compute Shannon's F_0 to F_N from the n-gram frequencies of a text.

    .. math::
        F_N = -\sum_{c, x} \hat p(c, x) \log \hat p(x \mid c)
        = H_N - H_{N-1}, \qquad |c| = N - 1

    H_N is the entropy of N-grams. All orders predict the same T - N + 1 symbols, those
    that have the longest context, so F_N never rises with N. Biased downwards, the more
    the larger N.

    Args:
        symbols: A string, for characters; or a sequence of words, of tokens, ...
        max_order: The largest N, at least 1.

    Returns:
        F_0 .. F_N.

    Raises:
        ValueError: If ``max_order`` is below 1 or no symbol has so long a context.

    Example:
        >>> [round(f.rate.bits, 4) for f in ngram_entropies("abababababab", 2)]
        [1.0, 0.994, 0.0]

    Reference:
        Shannon (1951), equation 1.
    """
    if max_order < 1:
        raise ValueError(f"max_order must be at least 1; got {max_order}")
    if len(symbols) < max_order:
        raise ValueError(
            f"a text of {len(symbols)} symbols has no {max_order}-gram: lower max_order"
        )
    text = symbols if isinstance(symbols, str) else tuple(symbols)
    zeroth = InformationRate(math.log(len(set(text))))
    orders = range(1, max_order + 1)
    predicted = range(max_order - 1, len(text))
    return [
        NgramEntropy(0, zeroth, 0.0),
        *(_conditional_entropy(text, order, predicted) for order in orders),
    ]


def _conditional_entropy(
    text: str | tuple[Hashable, ...], order: int, predicted: range
) -> NgramEntropy:
    after = order - 1
    contexts = Counter(text[t - after : t] for t in predicted)
    ngrams = Counter(text[t - after : t + 1] for t in predicted)
    nats = math.fsum(
        count * math.log(contexts[ngram[:-1]] / count)
        for ngram, count in ngrams.items()
    )
    unique = sum(count == 1 for count in contexts.values())
    count = len(predicted)
    return NgramEntropy(order, InformationRate(nats / count), unique / count)


@dataclass(frozen=True)
class Gamble:
    """Result of betting on every symbol of a text."""

    log_capital: float
    """Log of the final capital per unit at the start, nats."""
    num_symbols: int
    alphabet_size: int

    @property
    def rate(self) -> InformationRate:
        r"""Rate per symbol, an upper bound of the entropy in expectation.

        .. math:: \hat H = \Bigl(1 - \frac{1}{n} \log_A S_n\Bigr) \log A

        No gambler can expect more capital than the entropy allows: E[H-hat] is at least
        the rate H of the source, for any way of betting that was fixed beforehand.
        """
        log_bet = self.log_capital - self.num_symbols * math.log(self.alphabet_size)
        return InformationRate.of(log_bet, self.num_symbols)


def gamble(
    symbols: Sequence[Hashable],
    alphabet: Sequence[Hashable] = LETTERS,
    *,
    max_order: int = 5,
) -> Gamble:
    r"""Bet on a text symbol by symbol, with what its past teaches.

    .. math::
        b_N(x \mid c) = \frac{n(c x) + b_{N-1}(x \mid c')}{n(c) + 1},
        \qquad b_0(x) = 1 / A

    where n counts what has gone by, c is the N - 1 symbols before x and c' is c without
    its first. The stake is divided evenly among gamblers of orders 1 to ``max_order``,
    each of whom lets the capital ride:

    .. math::
        S_n = \frac{1}{M} \sum_{N=1}^{M} A^n \prod_{t=1}^{n} b_N(x_t \mid c_t)

    so that no order is chosen by looking; it costs at most log M nats in all. The bets
    of all symbols total one: S is a capital that could be won. Settings chosen on the
    same text are not bets any more; the best of m of them owes log m nats.

    Args:
        symbols: A string of the alphabet's characters, as :func:`letters` makes it;
            or a sequence of other symbols.
        alphabet: All that could come, A distinct symbols, fixed beforehand.
        max_order: M, the longest N-grams that a gambler counts.

    Raises:
        ValueError: If the text is empty, a symbol is not in the alphabet, the alphabet
            repeats one, or ``max_order`` is below 1.

    Example:
        >>> won = gamble("to be or not to be or not to be or not to be " * 3)
        >>> round(won.rate.bits, 2), round(math.log2(27), 2)
        (0.69, 4.75)

    Reference:
        Cover and King (1978); MacKay and Peto (1995) for probabilities of this form.
    """
    if max_order < 1:
        raise ValueError(f"max_order must be at least 1; got {max_order}")
    size, distinct = len(alphabet), set(alphabet)
    if len(distinct) < size:
        raise ValueError("the alphabet repeats a symbol")
    text = symbols if isinstance(symbols, str) else tuple(symbols)
    unknown = next((t for t, x in enumerate(text) if x not in distinct), None)
    if unknown is not None:
        raise ValueError(
            f"symbols[{unknown}] is {text[unknown]!r}, which the alphabet of {size} "
            "lacks: bets were on the alphabet alone"
        )
    if not text:
        raise ValueError("a bet needs a symbol: the text is empty")
    log_bets = _log_bets(text, size, max_order)
    largest = max(log_bets)
    shares = math.fsum(math.exp(bet - largest) for bet in log_bets) / max_order
    # What lies on the right symbol is paid A-for-1.
    capital = len(text) * math.log(size) + (largest + math.log(shares))
    return Gamble(capital, len(text), size)


def _log_bets(
    text: str | tuple[Hashable, ...], size: int, max_order: int
) -> list[float]:
    seen: defaultdict[Hashable, int] = defaultdict(int)
    seen_before: defaultdict[Hashable, int] = defaultdict(int)
    totals = [0.0] * max_order
    for t in range(len(text)):
        bet = 1 / size
        for order in range(1, max_order + 1):
            start = max(t - order + 1, 0)
            context, ngram = (order, text[start:t]), (order, text[start : t + 1])
            bet = (seen[ngram] + bet) / (seen_before[context] + 1)
            totals[order - 1] += math.log(bet)
            seen[ngram] += 1
            seen_before[context] += 1
    return totals
