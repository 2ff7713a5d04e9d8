"""What an audit asks about: texts, contexts that end where words do, options."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

TEXTS = (
    "The miller's daughter counted twelve geese before the rain came down.",
    "Nobody in the valley had seen a bridge as old as this one, and it still stood.",
    "He wrote seventeen letters in the winter, and she answered none of them.",
    "The river was high after the rain, so the ferry did not go out that day.",
    "In the morning the children went to the market with their mother.",
    "It was a small house at the end of the road, with a red door and two windows.",
    "They had been in the town for a year when the new school was opened.",
    "She said that the train would be late, but it came on time after all.",
)
"""Asked about where nobody gives others."""

ODD_CHARACTERS = ("cafe\u0301", "nai\u0308ve", "\U0001f469\u200d\U0001f52c", "日本語")
"""Words with several code points a character, or several bytes a code point."""


def cuts(text: str) -> list[int]:
    """Return where words end and others follow: before the white space between them.

    Example:
        >>> cuts("Ada saw  Bo")
        [3, 7]
    """
    return [m.start() for m in re.finditer(r"(?<=\S)\s+(?=\S)", text)]


def inside(text: str) -> list[int]:
    """Return places inside words."""
    return [m.start() for m in re.finditer(r"(?<=\w)(?=\w)", text)]


def words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts without marks around them, the most frequent first."""
    found = Counter(
        bare
        for text in texts
        for word in text.split()
        if (bare := word.strip(string.punctuation) or word)
    )
    return [word for word, _ in found.most_common()]


def prefix_free(options: Iterable[str]) -> list[str]:
    """Leave out options that begin with another one: what is left cannot be both.

    Example:
        >>> prefix_free([" the", " then", " a", " b"])
        [' the', ' a', ' b']
    """
    given = dict.fromkeys(option for option in options if option)
    return [
        option
        for option in given
        if not any(option[:end] in given for end in range(1, len(option)))
    ]


def contexts(
    texts: Sequence[str],
    number: int,
    rng: np.random.Generator,
    places_of: Callable[[str], list[int]] = cuts,
) -> list[tuple[str, str]]:
    """Cut texts where a word ends: pairs of what is before and what follows.

    No context is empty: what a scorer puts before a text, it may not put before one
    that is a context.

    Args:
        texts: Those without a place to cut are left out.
        number: Of pairs.
        rng: Chooses.
        places_of: Where a text can be cut.
    """
    splittable = [text for text in texts if places_of(text)]
    found = []
    for _ in range(number if splittable else 0):
        text = splittable[int(rng.integers(len(splittable)))]
        places = places_of(text)
        cut = places[int(rng.integers(len(places)))]
        found.append((text[:cut], text[cut:]))
    return found
