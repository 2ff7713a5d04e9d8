r"""Spacing model: white space between words.

.. math:: p(\text{text}) = p(\text{words}) \prod_t p(g_t \mid l_t, r_t)

where the gap g_t is the string of white space between two words, l_t the last
character before it and r_t the first one after it. The gaps have counts of their own,
interpolated with those of fewer conditions (hierarchical Dirichlet smoothing):

.. math::
    p(g \mid l, r) = \frac{c_{lr}(g) + p(g \mid r)}{c_{lr} + 1}, \quad
    p(g \mid r) = \frac{c_{r}(g) + p(g)}{c_{r} + 1}, \quad
    p(g) = \frac{c(g) + p_0(g)}{c + 1}

p_0 writes one white-space character after another and stops with probability 1/2, so
every gap is possible and the gaps between two given words total one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from lm_latent_eval.files import write_text
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.words import Words
from lm_latent_eval.values import Matching, Rules, Whole, check

FILE_NAME = "spacing.json"

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Every character that belongs to no word."""

BEGIN, END = "begin", "end"
"""What stands before the first and after the last word; no character is called so."""

_KIND = Matching(rf"(?s:.)|{BEGIN}|{END}", "a character, begin or end")
RULES: Rules = {
    "what stands before": _KIND,
    "what stands after": _KIND,
    "the gap": Matching(f"[{re.escape(WHITE_SPACE)}]*", "white space"),
    "its count": Whole(1),
}
"""What a row of the file is made of."""


class Spacing:
    """A distribution of the white space between two words."""

    def __init__(self, counts: Iterable[tuple[str, str, str, int]] = ()) -> None:
        """Take counts of (kind before, kind after, gap)."""
        self.counts = Counter[tuple[str, str, str]]()
        for left, right, gap, count in counts:
            self.counts[left, right, gap] += count
        self._right, self._any = Counter[tuple[str, str]](), Counter[str]()
        self._pairs, self._rights = Counter[tuple[str, str]](), Counter[str]()
        for (left, right, gap), count in self.counts.items():
            self._right[right, gap] += count
            self._any[gap] += count
            self._pairs[left, right] += count
            self._rights[right] += count
        self._total = self._any.total()
        self._log_prob = cache(self._uncached_log_prob)

    @classmethod
    def train(cls, texts: Iterable[tuple[str, Words]]) -> Spacing:
        """Count the gaps between the words of texts."""
        counts = Counter(gap for text, words in texts for gap in _gaps(text, words))
        return cls((*gap, count) for gap, count in counts.items())

    def __call__(self, text: str, words: Words) -> list[float]:
        """Return log p of the gap before each of T words and of the one after the last.

        Args:
            text: A string.
            words: Where its words are.

        Returns:
            T + 1 numbers, nats.
        """
        return [self._log_prob(*gap) for gap in _gaps(text, words)]

    def _uncached_log_prob(self, left: str, right: str, gap: str) -> float:
        base = 0.5 * (0.5 / len(WHITE_SPACE)) ** len(gap)
        anywhere = (self._any[gap] + base) / (self._total + 1)
        before = (self._right[right, gap] + anywhere) / (self._rights[right] + 1)
        pair = (left, right)
        return math.log(
            (self.counts[left, right, gap] + before) / (self._pairs[pair] + 1)
        )

    def save(self, directory: Path) -> None:
        rows = [[*gap, count] for gap, count in sorted(self.counts.items())]
        write_text(directory / FILE_NAME, json.dumps(rows, ensure_ascii=True))

    @classmethod
    def load(cls, directory: Path) -> Spacing:
        """Read ``spacing.json``.

        Raises:
            ValueError: If it is missing or damaged.
        """
        path = Path(directory) / FILE_NAME
        try:
            rows = strict_json.read(path)
            for number, row in enumerate(rows, 1):
                try:
                    check(dict(zip(RULES, row, strict=True)), RULES)
                except ValueError as err:
                    raise ValueError(f"row {number}: {err}") from err
            if len({(left, right, gap) for left, right, gap, _ in rows}) < len(rows):
                raise ValueError("it counts a gap twice")
            return cls(rows)
        except (OSError, ValueError, TypeError) as err:
            raise ValueError(
                f"{path} is not a readable table of white space ({err}): train the "
                "checkpoint's spelling again"
            ) from err


def _gaps(text: str, words: Words) -> Iterator[tuple[str, str, str]]:
    """Yield (kind before, kind after, gap) before each word and after the last."""
    left = [BEGIN, *(_kind(text[end - 1]) for end in words.ends)]
    right = [*(_kind(text[start]) for start in words.starts), END]
    yield from zip(left, right, words.gaps(text), strict=True)


@cache
def _kind(character: str) -> str:
    """Return one sign for all letters, one for all digits, and marks as they are."""
    if character.isalpha():
        return "a"
    return "0" if character.isdigit() else character
