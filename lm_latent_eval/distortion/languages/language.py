r"""The protocol of languages: samples of token sequences and their probabilities.

A sequence is what follows the begin-of-sequence token: token ids, the last of which is
the end-of-sequence token unless the sequence was cut at the maximum length N (the end
counts as a token). Its probability is always the product over its own tokens,

    p(x) = prod_t p(x_t | x_<t)

so that of a sequence without its end is the probability that *some* sequence begins
like this (a prefix probability). With that, what can be drawn at a maximum length is a
distribution: the sequences of at most N tokens that end, and the beginnings of N tokens
that do not, total one. The language itself has no maximum length: a sequence longer
than N that ends has a probability too, which is part of its beginning's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from lm_latent_eval.scoring.sequence_scorer import SequenceModel
from lm_latent_eval.uniforms import LANES, stream_key, uniforms

_BLOCKS = 8
"""Blocks of random numbers made at a time, for sequences of unknown length."""


@dataclass(frozen=True)
class Sample:
    """Sequences drawn from a language."""

    sequences: list[list[int]]
    log_p: Tensor
    """Log-probabilities under the language in nats, shape (n,), float64."""


class Language(SequenceModel[Sequence[int]], Protocol):
    """A distribution over sequences of token ids, which it draws.

    Its probabilities are exact: a language is what it is compared with, and a causal
    one may have learned another.
    """

    @property
    def vocab_size(self) -> int:
        """How many ids there are, begin and end included."""
        ...

    @property
    def begin_id(self) -> int:
        """What every sequence follows; it is no part of one."""
        ...

    @property
    def end_id(self) -> int:
        """What a sequence ends with, unless it was cut."""
        ...

    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Draw the sequences of these numbers.

        Sequence i of a seed is a function of both: of no other sequence, nor of how
        many are drawn together or in which order.

        Args:
            seed: The user's seed.
            indices: Which sequences, from 0 on.
            max_length: N, the most tokens of a sequence, its end included.

        Raises:
            ValueError: If N is below 1 or more than the language can produce.
        """
        ...

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return log p of sequences in nats, shape (n,), float64.

        Those without an end are beginnings; ``-inf`` is a probability of zero.

        Raises:
            ValueError: If a sequence has no tokens, goes on after its end, or has an
                id that is not in the vocabulary.
        """
        ...

    def save(self, directory: Path) -> None:
        """Write what decodes its ids and, if it is small, the language itself."""
        ...


def sequence_key(seed: int, index: int) -> int:
    """Return the key of one sequence's random numbers."""
    return stream_key(seed, f"language/{index}")


def endless_uniforms(key: int) -> Iterator[float]:
    """Yield the numbers in (0, 1) of a key, one after the other."""
    block = 0
    while True:
        yield from uniforms(key, (block,), _BLOCKS).flat
        block += _BLOCKS


def step_uniforms(keys: Sequence[int], num_steps: int) -> Tensor:
    """Return the first numbers of :func:`endless_uniforms`, shape (n, num_steps)."""
    blocks = -(-num_steps // LANES)
    rows = [torch.from_numpy(uniforms(key, (0,), blocks)).flatten() for key in keys]
    return torch.stack(rows)[:, :num_steps]


def cumulative(probabilities: Iterable[float]) -> list[float]:
    """Return a distribution function that ends at one exactly.

    So ``bisect_right`` of a number below one never finds a probability of zero.
    """
    sums = list(accumulate(probabilities))
    return [each / sums[-1] for each in sums]


def checked_sequences(
    sequences: Sequence[Sequence[int]], language: Language
) -> list[tuple[int, ...]]:
    """Return sequences that a language can be asked about.

    Raises:
        ValueError: As :meth:`Language.log_p`.
    """
    found = [tuple(sequence) for sequence in sequences]
    for number, ids in enumerate(found):
        if not ids:
            raise ValueError(
                f"sequence {number} has no tokens; one without words is "
                f"[{language.end_id}], its end"
            )
        wrong = [token for token in ids if not 0 <= token < language.vocab_size]
        if wrong:
            raise ValueError(
                f"sequence {number} has the token id {wrong[0]}, but the language's "
                f"are 0 .. {language.vocab_size - 1}: is it of another tokenizer?"
            )
        if language.end_id in ids[:-1]:
            raise ValueError(f"sequence {number} goes on after its end: {list(ids)}")
    return found


def checked_length(max_length: int) -> int:
    """Return a maximum length, or raise if it is none."""
    if max_length < 1:
        raise ValueError(f"max_length={max_length}: expected at least 1 token")
    return max_length


def log_p_by_length(
    sequences: Sequence[tuple[int, ...]], log_p: Callable[[Tensor], Tensor]
) -> Tensor:
    """Score sequences of one length together, (n, length) -> (n,), repeated ones once.

    Returns:
        What ``log_p`` returned for each sequence, shape (n,), float64.
    """
    distinct = list(dict.fromkeys(sequences))
    lengths: dict[int, list[int]] = {}
    for place, ids in enumerate(distinct):
        lengths.setdefault(len(ids), []).append(place)
    found = torch.empty(len(distinct), dtype=torch.float64)
    for places in lengths.values():
        found[places] = log_p(torch.tensor([distinct[place] for place in places]))
    where = {ids: place for place, ids in enumerate(distinct)}
    return found[[where[ids] for ids in sequences]]
