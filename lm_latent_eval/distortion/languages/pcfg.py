r"""A probabilistic context-free grammar as a language, with exact probabilities.

Of words w_1..w_n, with rules A -> B C, A -> B and A -> w (``_normal_form``):

    inside   b(i,j,A) = sum_B U*(A,B) [ p(B -> w_i), or over spans of two or more
                        sum_{k, B -> C D} p(B -> C D) b(i,k,C) b(k+1,j,D) ]
    prefix   f(i,A)   = sum_B L*(A,B) [ p(B -> w_n) at i = n, else
                        sum_{k, B -> C D} p(B -> C D) b(i,k,C) f(k+1,D) ]

b is the probability that A derives w_i..w_j and nothing else, f that it derives words
that begin with w_i..w_n. U* = (I - U)^-1 sums the chains A -> B -> ..; L* does so for
chains of first parts, L(A,B) = p(A -> B) + sum_C p(A -> B C), whose other parts derive
anything (total one, as derivations end).

Symbols: log b -> ``inside``, by width and first word; log f -> ``prefix``.
Source: Baker (1979) for b; Jelinek and Lafferty (1991) for f.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.distortion.languages.language import (
    BEGIN_ID,
    END_ID,
    FIRST_WORD,
    LANGUAGE_FILE,
    Language,
    Sample,
    checked_distribution,
    checked_sequences,
    checked_words,
    cumulative,
    endless_uniforms,
    log_p_by_length,
    sequence_key,
    word_tokenizer,
    write_description,
)
from lm_latent_eval.files import digest
from lm_latent_eval.options import whole

_CELLS = 1 << 23
"""Products of parts held at a time."""

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
        grammar._check()
        return grammar

    def _check(self) -> None:
        """Require that symbols are reached, and a spectral radius below one.

        Then derivations end, and total one. Where no words come from a symbol the
        radius is one at least.
        """
        reached = _closure([self.start], self.rules)
        if lost := [symbol for symbol in self.rules if symbol not in reached]:
            raise ValueError(f"nothing leads from {self.start} to {', '.join(lost)}")
        index = {symbol: n for n, symbol in enumerate(self.rules)}
        # How many B one rewriting of A leaves on average, [A, B].
        growth = np.zeros((len(index), len(index)))
        for symbol, rights in self.rules.items():
            for right, probability in rights.items():
                for part in right:
                    if part in index:
                        growth[index[symbol], index[part]] += probability
        radius = max(abs(np.linalg.eigvals(growth)))
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


Matrix = NDArray[np.float64]


def _normal_form(
    grammar: Grammar,
) -> tuple[NDArray[np.int64], Matrix, Matrix, Matrix]:
    """Return the same language by rules A -> B C, A -> B and A -> w.

    A longer rule A -> X Y Z becomes A -> X (Y Z), (Y Z) -> Y Z, where (Y Z) is a symbol
    of its own; a word among other parts becomes a symbol that is always that word.
    Probabilities of sequences stay what they were. Symbol 0 is the start.

    Returns:
        B and C of the rules A -> B C, each pair once, (R, 2); p(A -> B C), (R, A);
        p(A -> B), (A, A); p(A -> w), (A, W).
    """
    symbols: dict[tuple[str, ...], int] = {}
    waiting: list[tuple[str, ...]] = []

    def number(parts: tuple[str, ...]) -> int:
        if parts not in symbols:
            symbols[parts] = len(symbols)
            waiting.append(parts)
        return symbols[parts]

    word_id = {word: place for place, word in enumerate(grammar.words)}
    emitted, alone, paired = [], [], []
    number((grammar.start,))
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
    pair_rules = np.zeros((len(pairs), len(symbols)))
    unary = np.zeros((len(symbols), len(symbols)))
    words = np.zeros((len(symbols), len(grammar.words)))
    for parent, pair, probability in paired:
        pair_rules[row[pair], parent] += probability
    for parent, child, probability in alone:
        unary[parent, child] += probability
    for parent, word, probability in emitted:
        words[parent, word] += probability
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), pair_rules, unary, words


def _closure(symbols: Iterable[str], rules: Rules) -> set[str]:
    """Return what symbols lead to, themselves included."""
    reached: set[str] = set()
    waiting = list(symbols)
    while waiting:
        symbol = waiting.pop()
        if symbol in rules and symbol not in reached:
            reached.add(symbol)
            waiting += [part for right in rules[symbol] for part in right]
    return reached


class PCFG(Language):
    """The language of a grammar.

    Example:
        >>> plums = PCFG({
        ...     "kind": "pcfg",
        ...     "start": "S",
        ...     "words": ["plums", "grow", "quickly"],
        ...     "rules": {"S": {"plums V": 1}, "V": {"grow": 0.75, "V quickly": 0.25}},
        ... })
        >>> sample = plums.sample(seed=0, indices=range(3), max_length=8)
        >>> sample.sequences
        [[2, 3, 1], [2, 3, 4, 4, 4, 1], [2, 3, 1]]
        >>> sample.log_p.exp()
        tensor([0.7500, 0.0117, 0.7500], dtype=torch.float64)
        >>> plums.log_p([[2], [2, 3]]).exp()  # "plums ..", "plums grow .."
        tensor([1., 1.], dtype=torch.float64)
    """

    begin_id, end_id = BEGIN_ID, END_ID

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.grammar = Grammar.of(description)
        self._description = dict(description)
        pairs, pair_rules, unary, words = _normal_form(self.grammar)
        self._first, self._second = torch.from_numpy(pairs.T.copy())
        self._rules = torch.from_numpy(pair_rules)
        # (V, A): neither begin nor end is a word.
        self._emitted = torch.from_numpy(np.pad(words.T, ((FIRST_WORD, 0), (0, 0))))
        first_parts = unary.copy()
        for (first, _), probability in zip(pairs, pair_rules, strict=True):
            first_parts[:, first] += probability
        self._chains = _closed(unary)
        self._first_chains = _closed(first_parts)
        self._cumulative = {
            symbol: cumulative(rights.values())
            for symbol, rights in self.grammar.rules.items()
        }
        ids = enumerate(self.grammar.words, FIRST_WORD)
        self._ids = {word: id_ for id_, word in ids}

    @property
    def vocab_size(self) -> int:
        return FIRST_WORD + len(self.grammar.words)

    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Rewrite from the left, one random number a rule."""
        whole("max_length", max_length, 1)
        drawn = [self._draw(sequence_key(seed, i), max_length) for i in indices]
        return Sample(drawn, self.log_p(drawn))

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        return log_p_by_length(checked_sequences(sequences, self), self._log_p)

    def settings(self) -> dict[str, Any]:
        text = json.dumps(self._description, ensure_ascii=False)
        return {"kind": "pcfg", "digest": digest(text)}

    def save(self, directory: Path) -> None:
        write_description(self._description, directory / LANGUAGE_FILE)
        word_tokenizer(self.grammar.words).save_pretrained(directory)

    def _draw(self, key: int, max_length: int) -> list[int]:
        uniform = endless_uniforms(key)
        ids, waiting = [], [self.grammar.start]  # the next symbol or word last
        while waiting:
            part = waiting.pop()
            if part in self._ids:
                ids.append(self._ids[part])
                if len(ids) == max_length:
                    return ids
            else:
                rights = [*self.grammar.rules[part]]
                chosen = bisect_right(self._cumulative[part], next(uniform))
                waiting += reversed(rights[chosen])
        return [*ids, END_ID]

    def _log_p(self, ids: Tensor) -> Tensor:
        """Score sequences of one length, (n, length) -> (n,)."""
        places = max(1, ids.shape[1] ** 2 // 4) * max(1, len(self._first))
        scores = []
        for batch in ids.split(max(1, _CELLS // places)):
            ended = batch[:, -1] == END_ID
            log_p = torch.empty(len(batch), dtype=torch.float64)
            log_p[ended] = self._whole(batch[ended, :-1])
            log_p[~ended] = self._beginning(batch[~ended])
            scores.append(log_p)
        return torch.cat(scores)

    def _whole(self, ids: Tensor) -> Tensor:
        if ids.numel() == 0:  # nothing to score, or only an end, which cannot be
            return torch.full((len(ids),), -torch.inf, dtype=torch.float64)
        return self._inside(ids, ids.shape[1])[-1][:, 0, 0]

    def _beginning(self, ids: Tensor) -> Tensor:
        """Return the log-probabilities that sequences begin like this."""
        length = ids.shape[1]
        inside = self._inside(ids, length - 1)
        prefix = (self._emitted[ids[:, -1:]] @ self._first_chains).log()
        for first in reversed(range(length - 1)):
            # Some words from the first on as a whole, the others as a beginning.
            spans = inside[: length - 1 - first]
            whole = torch.stack([each[:, first : first + 1] for each in spans], 2)
            longer = self._joined(whole, prefix[:, None], self._first_chains)
            prefix = torch.cat([longer, prefix], 1)
        return prefix[:, 0, 0]

    def _inside(self, ids: Tensor, widest: int) -> list[Tensor]:
        """Return log b of all spans, (n, places, A) for each width from 1 on."""
        inside = [(self._emitted[ids] @ self._chains).log()]
        for width in range(2, widest + 1):
            num_spans = ids.shape[1] - width + 1
            left = [inside[k - 1][:, :num_spans] for k in range(1, width)]
            right = [
                inside[width - k - 1][:, k:][:, :num_spans] for k in range(1, width)
            ]
            both = torch.stack(left, 2), torch.stack(right, 2)
            inside.append(self._joined(*both, self._chains))
        return inside

    def _joined(self, left: Tensor, right: Tensor, chains: Tensor) -> Tensor:
        """Sum over splits, rules A -> B C and the chains that lead to A.

        (n, places, splits, A) -> (n, places, A), logarithms.
        """
        pairs = (left[..., self._first] + right[..., self._second]).logsumexp(2)
        scale = pairs.logsumexp(-1, keepdim=True)  # so that nothing underflows
        scale = scale.where(scale.isfinite(), 0)
        return ((pairs - scale).exp() @ self._rules @ chains).log() + scale


def _closed(step: NDArray[np.float64]) -> Tensor:
    """Return (I - step)^-1, transposed: probabilities of chains of any length."""
    chains = np.linalg.inv(np.eye(len(step)) - step)
    return torch.from_numpy(np.maximum(chains, 0).T.copy())
