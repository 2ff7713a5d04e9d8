"""Leftmost derivations of a grammar: sampling, and bracket notation.

A leftmost derivation is a list of steps: a symbol (and with it the rule that rewrites
it), a word, or the end of what a symbol was rewritten as.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from lm_latent_eval.distortion.languages.grammar import Grammar
from lm_latent_eval.distortion.languages.language import cumulative, endless_uniforms

Step = str | None
"""A symbol, a word, or None where a symbol closes."""


class Rewriter:
    """Rewrites the start of a grammar, one random number a rule."""

    def __init__(self, grammar: Grammar) -> None:
        self._start = grammar.start
        # The last part first, as a stack takes them; under them what closes the symbol.
        self._rules: dict[Step, tuple[list[float], list[tuple[Step, ...]]]] = {
            symbol: (
                cumulative(rights.values()),
                [(None, *reversed(right)) for right in rights],
            )
            for symbol, rights in grammar.rules.items()
        }

    def steps(self, key: int) -> Iterator[Step]:
        """Yield the steps of the derivation that a key's random numbers make."""
        uniform = endless_uniforms(key)
        waiting: list[Step] = [self._start]
        while waiting:
            step = waiting.pop()
            yield step
            if step in self._rules:
                sums, rights = self._rules[step]
                waiting += rights[bisect_right(sums, next(uniform))]


class Phrase(NamedTuple):
    """A symbol and the words that came from it."""

    symbol: str
    first: int
    """Its first word, counted from 0."""
    last: int


@dataclass(frozen=True)
class Derivation:
    """A sequence of words and the phrases that it is made of.

    Example:
        >>> steps = ["S", "plums", "V", "grow", None, None]
        >>> derivation = Derivation.of(steps, symbols={"S", "V"})
        >>> derivation.words, derivation.phrases[1]
        (('plums', 'grow'), Phrase(symbol='V', first=1, last=1))
        >>> derivation.brackets()
        '(S (_ plums) (V grow))'
    """

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...]
    """Parents before children, and left before right."""

    @classmethod
    def of(cls, steps: Iterable[Step], symbols: Iterable[str]) -> Self:
        """Read the steps of a derivation that ends."""
        symbols = frozenset(symbols)
        words: list[str] = []
        phrases: list[Phrase] = []
        still_open: list[int] = []
        for step in steps:
            if step is None:
                number = still_open.pop()
                phrases[number] = phrases[number]._replace(last=len(words) - 1)
            elif step in symbols:
                still_open.append(len(phrases))
                phrases.append(Phrase(step, len(words), -1))
            else:
                words.append(step)
        return cls(tuple(words), tuple(phrases))

    def brackets(self) -> str:
        """Write it as treebanks do; a word beside other parts has the label ``_``."""
        opening: list[list[Phrase]] = [[] for _ in self.words]
        closing = [0] * len(self.words)
        for phrase in self.phrases:
            opening[phrase.first].append(phrase)
            closing[phrase.last] += 1
        found = []
        for place, word in enumerate(self.words):
            labels = "".join(f"({phrase.symbol} " for phrase in opening[place])
            alone = any(phrase.last == place for phrase in opening[place])
            leaf = word if alone else f"(_ {word})"
            found.append(labels + leaf + ")" * closing[place])
        return " ".join(found)
