r"""Languages: samples of token sequences and their probabilities; their tokenizers.

A sequence is what follows the begin-of-sequence token: token ids, the last of which is
the end-of-sequence token unless the sequence was cut at the maximum length N (the end
counts as a token). Its probability is always the product over its own tokens,

    p(x) = prod_t p(x_t | x_<t)

so that of a sequence without its end is the probability that *some* sequence begins
like this (a prefix probability). With that, what can be drawn at a maximum length is a
distribution: the sequences of at most N tokens that end, and the beginnings of N tokens
that do not, total one. The language itself has no maximum length: a sequence longer
than N that ends has a probability too, which is part of its beginning's.

In languages over words, ids 0 and 1 are the begin and the end of a sequence; then come
the words in the order of their file.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from lm_latent_eval.estimators import Bound
from lm_latent_eval.files import write_text
from lm_latent_eval.scoring.log_likelihoods import LogLikelihoods
from lm_latent_eval.text.files import read_json
from lm_latent_eval.uniforms import LANES, stream_key, uniforms, uniforms_of

BEGIN, END = "<s>", "</s>"
BEGIN_ID, END_ID, FIRST_WORD = 0, 1, 2
LANGUAGE_FILE = "language.json"
"""Beside what was drawn: the language itself, or where it is."""
TOLERANCE = 1e-6
"""Largest error of the total of probabilities in a file, which are rounded."""


def checked_words(words: Any) -> tuple[str, ...]:
    """Return the words of a language.

    Raises:
        ValueError: If they are not distinct strings without white space.
    """
    if not isinstance(words, list | tuple) or not words:
        raise ValueError("words: expected a list of at least one word")
    for word in words:
        if not isinstance(word, str) or word.split() != [word]:
            raise ValueError(f"words: {word!r} is not a string without white space")
        if word in (BEGIN, END):
            raise ValueError(f"words: {word} stands for a begin or end of sequences")
    [(most, count)] = Counter(words).most_common(1)
    if count > 1:
        raise ValueError(f"words: {most!r} stands there more than once")
    return tuple(words)


def checked_distribution(weights: Any, what: str) -> dict[str, float]:
    """Return probabilities that total one to the last digit.

    Raises:
        ValueError: If one is not positive, or their total is off by more than 1e-6.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"{what}: expected names and their probabilities")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ValueError(f"{what}: {name!r} has {weight!r}; expected a probability")
        if not 0 < weight <= 1 + TOLERANCE:
            raise ValueError(
                f"{what}: {name!r} has the probability {weight}; expected more than 0 "
                "and at most 1 (leave out what cannot be)"
            )
    total = sum(weights.values())
    if abs(total - 1) > TOLERANCE:
        raise ValueError(f"{what}: the probabilities total {total:.9g}, expected 1")
    return {str(name): float(weight) / total for name, weight in weights.items()}


def read_description(path: Path) -> dict[str, Any]:
    """Read the JSON file of a language.

    Raises:
        ValueError: If it is not an object, or a name stands twice in one.
    """
    try:
        description = read_json(path)
    except (OSError, ValueError) as err:
        raise ValueError(
            f"{path} is not the description of a language ({err})"
        ) from err
    if not isinstance(description, dict):
        raise ValueError(f"{path}: expected a JSON object with the key 'kind'")
    return description


def write_description(description: Mapping[str, Any], path: Path) -> None:
    text = json.dumps(description, indent=1, ensure_ascii=False)
    write_text(path, text + "\n")


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a language: words stand between white space.

    It reads "a plum" as the ids of its two words; a word that the language lacks is an
    error, as there is no unknown token.
    """
    vocabulary = {word: id_ for id_, word in enumerate((BEGIN, END, *words))}
    backend = Tokenizer(WordLevel(vocabulary))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BEGIN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError):
        return None
    # Where there are no files, transformers may make one up that has no words.
    words = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    loaded: PreTrainedTokenizerBase | None = tokenizer if words else None
    return loaded


_BLOCKS = 8
"""Blocks of random numbers made at a time, for sequences of unknown length."""


@dataclass(frozen=True)
class Sample:
    """Sequences drawn from a language."""

    sequences: list[list[int]]
    log_p: Tensor
    """Log-probabilities under the language in nats, shape (n,), float64."""


class Language(ABC):
    """Base class of distributions over sequences of token ids, which they draw.

    Their probabilities are exact: a language is what it is compared with, and a causal
    one may have learned another.
    """

    begin_id: int
    """Id of the begin token, which is part of no sequence."""
    end_id: int
    """Id of the end token, which a cut sequence lacks."""
    bound = Bound.EXACT

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, begin and end included."""

    @abstractmethod
    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Draw the sequences of these numbers.

        Sequence i of a seed is a function of both: of no other sequence, nor of how
        many are drawn together or in which order.

        Args:
            seed: The user's seed.
            indices: Indices of the sequences, from 0 on.
            max_length: N, the most tokens of a sequence, its end included.

        Raises:
            ValueError: If N is below 1 or more than the language can produce.
        """

    @abstractmethod
    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return log p of sequences in nats, shape (n,), float64.

        Those without an end are beginnings; ``-inf`` is a probability of zero.

        Raises:
            ValueError: If a sequence has no tokens, goes on after its end, or has an
                id that is not in the vocabulary.
        """

    def score(
        self, sequences: Sequence[Sequence[int]], names: Sequence[str], /
    ) -> LogLikelihoods:
        """Score sequences; names have no effect."""
        return LogLikelihoods.exact(self.log_p(sequences))

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings that its numbers depend on, for a JSON file."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the tokenizer and, if it is small, the language itself."""


def sequence_key(seed: int, index: int) -> int:
    return stream_key(seed, f"language/{index}")


def endless_uniforms(key: int) -> Iterator[float]:
    block = 0
    while True:
        yield from uniforms(key, (block,), _BLOCKS).flat
        block += _BLOCKS


def step_uniforms(keys: Sequence[int], num_steps: int) -> Tensor:
    """Return the first numbers of :func:`endless_uniforms`, shape (n, num_steps)."""
    blocks = -(-num_steps // LANES)
    rows = torch.from_numpy(uniforms_of(keys, [(0,)] * len(keys), blocks))
    return rows.flatten(1)[:, :num_steps]


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
    checked = [tuple(sequence) for sequence in sequences]
    for n, ids in enumerate(checked):
        if not ids:
            raise ValueError(
                f"sequence {n} has no tokens; one without words is "
                f"[{language.end_id}], its end"
            )
        wrong = [token for token in ids if not 0 <= token < language.vocab_size]
        if wrong:
            raise ValueError(
                f"sequence {n} has the token id {wrong[0]}, but the language's "
                f"are 0 .. {language.vocab_size - 1}: is it of another tokenizer?"
            )
        if language.end_id in ids[:-1]:
            raise ValueError(f"sequence {n} goes on after its end: {list(ids)}")
    return checked


def log_p_by_length(
    sequences: Sequence[tuple[int, ...]], log_p: Callable[[Tensor], Tensor]
) -> Tensor:
    """Score sequences of one length together, (n, length) -> (n,), repeated ones once.

    Returns:
        What ``log_p`` returned for each sequence, shape (n,), float64.
    """
    distinct = list(dict.fromkeys(sequences))
    lengths: dict[int, list[int]] = {}
    for row, ids in enumerate(distinct):
        lengths.setdefault(len(ids), []).append(row)
    scores = torch.empty(len(distinct), dtype=torch.float64)
    for rows in lengths.values():
        scores[rows] = log_p(torch.tensor([distinct[row] for row in rows]))
    where = {ids: row for row, ids in enumerate(distinct)}
    return scores[[where[ids] for ids in sequences]]
