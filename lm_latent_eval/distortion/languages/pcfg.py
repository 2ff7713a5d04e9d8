r"""A probabilistic context-free grammar as a language, with exact probabilities.

Of words w_1..w_n, with rules A -> B C, A -> B and A -> w (``NormalForm``):

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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.distortion.languages.grammar import (
    Derivation,
    Grammar,
    NormalForm,
    Rewriter,
    Step,
)
from lm_latent_eval.distortion.languages.language import (
    BEGIN_ID,
    END_ID,
    FIRST_WORD,
    LANGUAGE_FILE,
    Language,
    Sample,
    checked_sequences,
    description_digest,
    log_p_by_length,
    sequence_key,
    word_tokenizer,
    write_description,
)
from lm_latent_eval.options import whole

_CELLS = 1 << 23
"""Products of parts held at a time."""


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
        """Read a description.

        Raises:
            ValueError: As :meth:`Grammar.of`.
        """
        self.grammar = Grammar.of(description)
        self._description = dict(description)
        form = NormalForm.of(self.grammar)
        self._start = form.start
        self._first, self._second = torch.from_numpy(form.pairs.T.copy())
        self._rules = torch.from_numpy(form.pair_rules)
        # (V, A): neither begin nor end is a word.
        self._emitted = torch.from_numpy(
            np.pad(form.words.T, ((FIRST_WORD, 0), (0, 0)))
        )
        first_parts = form.unary.copy()
        for (first, _), probability in zip(form.pairs, form.pair_rules, strict=True):
            first_parts[:, first] += probability
        self._chains = _closed(form.unary)
        self._first_chains = _closed(first_parts)
        self._rewriter = Rewriter(self.grammar)
        words = enumerate(self.grammar.words, FIRST_WORD)
        self._ids: dict[Step, int] = {word: id_ for id_, word in words}

    @property
    def vocab_size(self) -> int:
        return FIRST_WORD + len(self.grammar.words)

    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Rewrite from the left, one random number a rule."""
        whole("max_length", max_length, 1)
        drawn = [self._draw(sequence_key(seed, i), max_length) for i in indices]
        return Sample(drawn, self.log_p(drawn))

    def derivation(self, seed: int, index: int) -> Derivation:
        """Return the derivation of a sequence of :meth:`sample`, uncut."""
        steps = self._rewriter.steps(sequence_key(seed, index))
        return Derivation.of(steps, self.grammar.rules)

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Sum over all derivations; see :meth:`Language.log_p`."""
        return log_p_by_length(checked_sequences(sequences, self), self._log_p)

    def settings(self) -> dict[str, Any]:
        return {"kind": "pcfg", "digest": description_digest(self._description)}

    def save(self, directory: Path) -> None:
        write_description(self._description, directory / LANGUAGE_FILE)
        word_tokenizer(self.grammar.words).save_pretrained(directory)

    def _draw(self, key: int, max_length: int) -> list[int]:
        ids: list[int] = []
        for step in self._rewriter.steps(key):
            if step in self._ids:
                ids.append(self._ids[step])
                if len(ids) == max_length:
                    return ids
        return [*ids, END_ID]

    def _log_p(self, ids: Tensor) -> Tensor:
        """Score sequences of one length, (n, length) -> (n,)."""
        places = max(1, ids.shape[1] ** 2 // 4) * max(1, len(self._first))
        found = []
        for some in ids.split(max(1, _CELLS // places)):
            ended = some[:, -1] == END_ID
            log_p = torch.empty(len(some), dtype=torch.float64)
            log_p[ended] = self._whole(some[ended, :-1])
            log_p[~ended] = self._beginning(some[~ended])
            found.append(log_p)
        return torch.cat(found)

    def _whole(self, ids: Tensor) -> Tensor:
        """Return the log-probabilities of all words, without the end."""
        if ids.numel() == 0:  # nothing to score, or only an end, which cannot be
            return torch.full((len(ids),), -torch.inf, dtype=torch.float64)
        return self._inside(ids, ids.shape[1])[-1][:, 0, self._start]

    def _beginning(self, ids: Tensor) -> Tensor:
        """Return the log-probabilities that sequences begin like this."""
        length = ids.shape[1]
        inside = self._inside(ids, length - 1)
        prefix = (self._emitted[ids[:, -1:]] @ self._first_chains).log()
        for first in reversed(range(length - 1)):
            # Some words from the first on as a whole, the others as a beginning.
            spans = inside[: length - 1 - first]
            whole = torch.stack([each[:, first : first + 1] for each in spans], 2)
            found = self._joined(whole, prefix[:, None], self._first_chains)
            prefix = torch.cat([found, prefix], 1)
        return prefix[:, 0, self._start]

    def _inside(self, ids: Tensor, widest: int) -> list[Tensor]:
        """Return log b of all spans, (n, places, A) for each width from 1 on."""
        inside = [(self._emitted[ids] @ self._chains).log()]
        for width in range(2, widest + 1):
            number = ids.shape[1] - width + 1
            left = [inside[k - 1][:, :number] for k in range(1, width)]
            right = [inside[width - k - 1][:, k:][:, :number] for k in range(1, width)]
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
