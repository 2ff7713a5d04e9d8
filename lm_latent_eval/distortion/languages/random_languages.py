"""Random grammars and hidden Markov models of a stated size, lopsided on purpose.

Probabilities are powers of exponential random numbers, divided by their total: a few
rules, and a few words, are common, the others rare. The expected length of a sequence
is exact, not an aim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from lm_latent_eval.distortion.languages.language import endless_uniforms
from lm_latent_eval.distortion.languages.words import END
from lm_latent_eval.uniforms import stream_key

_SKEW = 2.0
"""Power of the exponential numbers: 1 is a uniform choice of distributions."""
_BRANCHING = 0.2
"""Probability that a phrase is two phrases."""


def random_pcfg(
    num_symbols: int, num_words: int, *, expected_length: float = 10.0, seed: int = 0
) -> dict[str, Any]:
    """Return the description of a grammar of phrases X and kinds of words T.

    A phrase is a word (X -> T), a word before or after a phrase (X -> T X | X T) or two
    phrases (X -> X X); of each there are several rules.

    Args:
        num_symbols: Phrases; there are as many kinds of words.
        num_words: At least as many as symbols. Some belong to two kinds.
        expected_length: Words of a sequence, on average.
        seed: Of the probabilities.

    Raises:
        ValueError: If a size is too small.
    """
    shortest = (1 - _BRANCHING) / (1 - 2 * _BRANCHING)
    _check(num_symbols, num_words, expected_length, shortest)
    uniform = endless_uniforms(stream_key(seed, "pcfg"))
    # Length = word + extended (1 + length) + branching (2 length), which total one.
    extended = 1 - 2 * _BRANCHING - (1 - _BRANCHING) / expected_length
    word = 1 - _BRANCHING - extended
    numbers = range(num_symbols)
    phrases, kinds = [f"X{n}" for n in numbers], [f"T{n}" for n in numbers]
    words = _words(num_words)
    rules = {}
    for n in numbers:
        kind, phrase = kinds[n], phrases[(n + 1) % num_symbols]
        other_kind, other = _choose(uniform, kinds), _choose(uniform, phrases)
        groups = (
            (word, (kind, other_kind)),
            (
                extended,
                (f"{kind} {phrase}", f"{other} {other_kind}", f"{kind} {other}"),
            ),
            (_BRANCHING, (f"{phrase} {other}", f"{other} {phrases[n]}")),
        )
        rules[phrases[n]] = {
            right: share * probability
            for share, rights in groups
            for right, probability in _lopsided(uniform, rights).items()
        }
    for kind, own in _spelled(uniform, kinds, words).items():
        rules[kind] = own
    return {"kind": "pcfg", "start": phrases[0], "words": words, "rules": rules}


def random_hmm(
    num_states: int, num_words: int, *, expected_length: float = 10.0, seed: int = 0
) -> dict[str, Any]:
    """Return the description of a hidden Markov model.

    Every state can follow every other, and every state ends with the same probability.

    Args:
        num_states: States.
        num_words: At least as many as states. Some belong to two states.
        expected_length: Words of a sequence, on average.
        seed: Of the probabilities.

    Raises:
        ValueError: If a size is too small.
    """
    _check(num_states, num_words, expected_length, 1.0)
    uniform = endless_uniforms(stream_key(seed, "hmm"))
    states, words = [f"Z{n}" for n in range(num_states)], _words(num_words)
    end = 1 / expected_length
    transitions = {
        state: {z: (1 - end) * p for z, p in _lopsided(uniform, states).items()}
        | {END: end}
        for state in states
    }
    return {
        "kind": "hmm",
        "words": words,
        "initial": _lopsided(uniform, states),
        "transitions": transitions,
        "emissions": _spelled(uniform, states, words),
    }


def _check(num_symbols: int, num_words: int, length: float, shortest: float) -> None:
    if num_symbols < 1 or num_words < num_symbols:
        raise ValueError(
            f"{num_symbols} symbols and {num_words} words: expected at least one "
            "symbol, and a word for each"
        )
    if not shortest < length < math.inf:
        raise ValueError(f"expected_length={length}: expected more than {shortest:.3g}")


def _words(number: int) -> list[str]:
    digits = len(str(number - 1))
    return [f"w{n:0{digits}}" for n in range(number)]


def _choose(uniform: Iterator[float], names: list[str]) -> str:
    return names[int(next(uniform) * len(names))]


def _lopsided(uniform: Iterator[float], names: Any) -> dict[str, float]:
    """Return a distribution over distinct names."""
    weights = {name: (-math.log(next(uniform))) ** _SKEW for name in names}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _spelled(
    uniform: Iterator[float], kinds: list[str], words: list[str]
) -> dict[str, dict[str, float]]:
    """Give every word to a kind, and every third one to a random one as well."""
    own: dict[str, list[str]] = {kind: [] for kind in kinds}
    for kind, word in zip(cycle(kinds), words, strict=False):
        own[kind].append(word)
    for word in words[::3]:
        own[_choose(uniform, kinds)].append(word)
    return {kind: _lopsided(uniform, dict.fromkeys(some)) for kind, some in own.items()}
