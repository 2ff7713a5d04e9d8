"""Languages over words: ids, tokenizer, and files of probabilities.

Ids 0 and 1 are the begin and the end of a sequence, then come the words in the order of
the file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.files import write_text
from lm_latent_eval.text import strict_json

BEGIN, END = "<s>", "</s>"
BEGIN_ID, END_ID, FIRST_WORD = 0, 1, 2
LANGUAGE_FILE = "language.json"
"""Beside what was drawn: the language itself, or where it is."""
TOLERANCE = 1e-6
"""How far from one the probabilities in a file may total: they are written rounded."""


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
    if repeated := _repeated(words):
        raise ValueError(f"words: {repeated!r} stands there more than once")
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
        found = strict_json.read(path)
    except (OSError, ValueError) as err:
        raise ValueError(
            f"{path} is not the description of a language ({err})"
        ) from err
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object with the key 'kind'")
    return found


def write_description(description: Mapping[str, Any], path: Path) -> None:
    """Write the JSON file of a language."""
    text = json.dumps(description, indent=1, ensure_ascii=False)
    write_text(path, text + "\n")


def description_digest(description: Mapping[str, Any]) -> str:
    """Return what tells a description from others."""
    text = json.dumps(description, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checked_keys(
    description: Mapping[str, Any], kind: str, expected: Sequence[str]
) -> None:
    """Raise unless a description has these keys."""
    if description.get("kind") != kind:
        raise ValueError(f"kind is {description.get('kind')!r}, expected {kind!r}")
    keys = {"kind", *expected}
    if different := sorted(keys ^ set(description)):
        raise ValueError(
            f"keys missing or unknown: {different}; expected {sorted(keys)}"
        )


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


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
