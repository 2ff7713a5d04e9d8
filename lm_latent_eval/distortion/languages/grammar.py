"""Probabilistic context-free grammars: rules, normal form, derivations.

A leftmost derivation is a list of steps: a symbol (and with it the rule that rewrites
it), a word, or the end of what a symbol was rewritten as.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.distortion.languages.language import (
    checked_distribution,
    checked_words,
    cumulative,
    endless_uniforms,
)

Rules = dict[str, dict[tuple[str, ...], float]]
"""Symbol -> what it is rewritten as -> with which probability."""


@dataclass(frozen=True)
class Grammar:
    """A grammar whose derivations end, and whose rules total one for every symbol.

    Example:
        >>> grammar = Grammar.of({
        ...     "kind": "pcfg",
        ...     "start": "S",
        ...     "words": ["plums", "grow", "quickly"],
        ...     "rules": {"S": {"plums V": 1}, "V": {"grow": 0.75, "V quickly": 0.25}},
        ... })
        >>> grammar.rules["V"]
        {('grow',): 0.75, ('V', 'quickly'): 0.25}
    """

    start: str
    words: tuple[str, ...]
    rules: Rules

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """Check a description of a grammar, as its JSON file has it.

        Args:
            description: ``{"kind": "pcfg", "start": symbol, "words": [word, ...],
                "rules": {symbol: {"symbols and words": probability, ...}, ...}}``.

        Raises:
            ValueError: If rules do not total one, name what is neither a symbol nor a
                word, cannot be reached, never end, or sequences have no finite
                expected length.
        """
        if description.get("kind") != "pcfg":
            raise ValueError(f"kind is {description.get('kind')!r}, expected 'pcfg'")
        keys = {"kind", "start", "words", "rules"}
        if different := sorted(keys ^ set(description)):
            raise ValueError(
                f"keys missing or unknown: {different}; expected {sorted(keys)}"
            )
        words = checked_words(description["words"])
        start, given = description["start"], description["rules"]
        if not isinstance(given, Mapping) or start not in given:
            raise ValueError(f"rules: expected symbols, {start!r} (the start) for one")
        rules: Rules = {}
        for symbol, weights in given.items():
            if symbol in words:
                raise ValueError(f"{symbol!r} is a word, and has rules as well")
            rules[symbol] = {}
            found = checked_distribution(weights, f"the rules of {symbol}")
            for right, probability in found.items():
                parts = tuple(right.split())
                if not parts:
                    raise ValueError(f"{symbol} is rewritten as nothing: leave it out")
                if parts in rules[symbol]:
                    raise ValueError(
                        f"{symbol} -> {right} stands there twice: give their total"
                    )
                for part in parts:
                    if part not in given and part not in words:
                        raise ValueError(
                            f"{symbol} -> {right}: {part} is neither a symbol with "
                            "rules nor one of the words"
                        )
                rules[symbol][parts] = probability
        grammar = cls(start, words, rules)
        grammar._check_uses()
        grammar._check_growth()
        return grammar

    @property
    def _growth(self) -> NDArray[np.float64]:
        """How many B one rewriting of A leaves on average, [A, B]."""
        place = {symbol: number for number, symbol in enumerate(self.rules)}
        growth = np.zeros((len(place), len(place)))
        for symbol, rights in self.rules.items():
            for right, probability in rights.items():
                for part in right:
                    if part in place:
                        growth[place[symbol], place[part]] += probability
        return growth

    def _check_uses(self) -> None:
        reached = _closure([self.start], self.rules)
        if lost := [symbol for symbol in self.rules if symbol not in reached]:
            raise ValueError(f"nothing leads from {self.start} to {', '.join(lost)}")

    def _check_growth(self) -> None:
        """Require a spectral radius below one: then derivations end, and total one.

        Where no words come from a symbol it is one at least.
        """
        radius = max(abs(np.linalg.eigvals(self._growth)))
        if radius >= 1 - 1e-9:
            again = [s for s in self.rules if s in _closure(self._parts(s), self.rules)]
            raise ValueError(
                "the expected length of a sequence is infinite: each rewriting leaves "
                f"{radius:.4g} symbols of the same kind, expected less than 1. Make "
                "rules less probable that lead from a symbol to itself, beside others "
                f"that lead to words: those of {', '.join(again)}"
            )

    def _parts(self, symbol: str) -> list[str]:
        return [part for right in self.rules[symbol] for part in right]


@dataclass(frozen=True)
class NormalForm:
    """The same language by rules A -> B C, A -> B and A -> w.

    A longer rule A -> X Y Z becomes A -> X (Y Z), (Y Z) -> Y Z, where (Y Z) is a symbol
    of its own; a word among other parts becomes a symbol that is always that word.
    Probabilities of sequences stay what they were.
    """

    start: int
    pairs: NDArray[np.int64]
    """B and C of the rules A -> B C, each pair once, (R, 2)."""
    pair_rules: NDArray[np.float64]
    """p(A -> B C), (R, A)."""
    unary: NDArray[np.float64]
    """p(A -> B), (A, A)."""
    words: NDArray[np.float64]
    """p(A -> w), (A, W)."""

    @classmethod
    def of(cls, grammar: Grammar) -> Self:
        """Rewrite a grammar."""
        symbols: dict[tuple[str, ...], int] = {}
        waiting: list[tuple[str, ...]] = []

        def number(parts: tuple[str, ...]) -> int:
            if parts not in symbols:
                symbols[parts] = len(symbols)
                waiting.append(parts)
            return symbols[parts]

        word_id = {word: place for place, word in enumerate(grammar.words)}
        emitted, alone, paired = [], [], []
        start = number((grammar.start,))
        while waiting:
            parts = waiting.pop()
            rights: Iterable[tuple[tuple[str, ...], float]]
            if len(parts) == 1 and parts[0] in grammar.rules:
                rights = grammar.rules[parts[0]].items()
            else:  # a word, or the rest of a longer rule: there is one way
                rights = [(parts, 1.0)]
            for right, probability in rights:
                if len(right) > 1:
                    pair = number(right[:1]), number(right[1:])
                    paired.append((symbols[parts], pair, probability))
                elif right[0] in word_id:
                    emitted.append((symbols[parts], word_id[right[0]], probability))
                else:
                    alone.append((symbols[parts], number(right), probability))
        pairs = sorted({pair for _, pair, _ in paired})
        row = {pair: place for place, pair in enumerate(pairs)}
        form = cls(
            start,
            np.array(pairs, dtype=np.int64).reshape(-1, 2),
            np.zeros((len(pairs), len(symbols))),
            np.zeros((len(symbols), len(symbols))),
            np.zeros((len(symbols), len(grammar.words))),
        )
        for parent, pair, probability in paired:
            form.pair_rules[row[pair], parent] += probability
        for parent, child, probability in alone:
            form.unary[parent, child] += probability
        for parent, word, probability in emitted:
            form.words[parent, word] += probability
        return form


def _closure(symbols: Iterable[str], rules: Rules) -> set[str]:
    """Return what symbols lead to, themselves included."""
    found: set[str] = set()
    waiting = list(symbols)
    while waiting:
        symbol = waiting.pop()
        if symbol in rules and symbol not in found:
            found.add(symbol)
            waiting += [part for right in rules[symbol] for part in right]
    return found


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
