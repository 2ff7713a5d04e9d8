"""The noise channel of contrastive entropy: substitution and transposition of words.

    for i = 1 .. n, in place, from left to right, exactly one of
        x_i <- v          probability x_S;  v uniform over the vocabulary
        x_i <-> x_j       probability x_T;  j uniform over 1 .. n
        x_i as it is      probability 1 - x_S - x_T

Symbols: x_S -> ``substitution``; x_T -> ``transposition``; the paper's "d %" is
x_S = x_T = d.
Departures: none known. The paper leaves open whether x_i may be its own v or partner,
and whether later words see earlier changes. They may, and they do: with that, its
ratios come out (Kneser-Ney 3-grams on its test set: 2.092 and 2.648, printed 2.096 and
2.649; with partners other than x_i itself 2.064 and 2.599).
Source: Arora and Rangarajan (2016), section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Generic, TypeVar

from lm_latent_eval.uniforms import stream_key, uniforms

T = TypeVar("T")


@dataclass(frozen=True)
class NoiseChannel(Generic[T]):
    """Substitutes and transposes the words of a sentence; keeps their number.

    Args:
        substitution: x_S, the probability that a word is substituted.
        transposition: x_T, the probability that it changes places with a word of its
            sentence.
        vocabulary: Words of the *training* text in a fixed order, from which
            substitutes are drawn uniformly. Words may be any objects, token ids for
            one; a repeated entry is drawn more often.

    Raises:
        ValueError: If the probabilities are out of range or total more than 1, or the
            vocabulary is empty.

    Example:
        >>> channel = NoiseChannel(0.25, 0.25, ["plum", "river"])
        >>> channel.distort("she sold her house".split(), seed=0, name="a sentence")
        ['river', 'sold', 'her', 'house']
    """

    substitution: float
    transposition: float
    vocabulary: Sequence[T]

    def __post_init__(self) -> None:
        for name in ("substitution", "transposition"):
            value = getattr(self, name)
            if not _is_share(value, most=1):
                raise ValueError(
                    f"{name}={value!r}: expected a probability, 0.3 for 30 %"
                )
        if self.substitution + self.transposition > 1:
            raise ValueError(
                f"substitution={self.substitution} and transposition="
                f"{self.transposition} total more than 1: a word is one or the other"
            )
        if isinstance(self.vocabulary, str) or not isinstance(
            self.vocabulary, Sequence
        ):
            raise ValueError(
                "vocabulary: expected a list of words, whose order decides what is "
                f"drawn; got a {type(self.vocabulary).__name__}"
            )
        if not self.vocabulary:
            raise ValueError("vocabulary is empty: nothing to substitute words by")

    @classmethod
    def preset(cls, level: float, vocabulary: Sequence[T]) -> NoiseChannel[T]:
        """The paper's channel of a level: x_S = x_T = level.

        Raises:
            ValueError: If the level is not from 0 to 0.5.
        """
        if not _is_share(level, most=0.5):
            raise ValueError(
                f"level={level!r}: expected a share of at most 0.5 (0.3 for 30 %), as "
                "much is substituted and as much transposed"
            )
        return cls(level, level, vocabulary)

    def distort(
        self, words: Sequence[T], *, seed: int, name: str | int, replicate: int = 0
    ) -> list[T]:
        """Distort a sentence; it has as many words.

        A function of its arguments alone. Channels of different levels draw the same
        numbers: a word that 10 % substitutes, 30 % substitutes by the same one, so
        ratios of entropies have a smaller error than with independent noise.

        Args:
            words: The sentence. An empty one stays empty; a single word changes places
                with itself.
            seed: The user's seed.
            name: Identity of this sentence, distinct for repetitions: its index in the
                text, say.
            replicate: Index of its distorted copy; copies are independent.

        Raises:
            ValueError: If the sentence is a string, or the replicate below 0.
        """
        if isinstance(words, str):
            raise ValueError(f"expected a list of words; got the string {words[:40]!r}")
        if replicate < 0:
            raise ValueError(f"replicate={replicate}: expected a number from 0 on")
        noisy = list(words)
        key = stream_key(seed, f"noise/{name}")
        drawn = uniforms(key, (0, replicate), len(noisy)).tolist()
        for i, (outcome, substitute, partner, _) in enumerate(drawn):
            if outcome < self.substitution:
                noisy[i] = self.vocabulary[int(substitute * len(self.vocabulary))]
            elif outcome < self.substitution + self.transposition:
                j = int(partner * len(noisy))
                noisy[i], noisy[j] = noisy[j], noisy[i]
        return noisy


def _is_share(value: object, *, most: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0 <= float(value) <= most
