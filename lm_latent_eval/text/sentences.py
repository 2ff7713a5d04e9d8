"""Sentence boundaries of a document, by ``sentencex`` or by lines."""

from __future__ import annotations

import re
from itertools import accumulate

from sentencex import segment

from lm_latent_eval.text.words import encodable


def sentence_starts(text: str, language: str = "en") -> list[int]:
    """Return where each sentence begins, in characters.

    White space between sentences belongs to the one before.

    Args:
        text: A document.
        language: Its code, for abbreviations.

    Example:
        >>> text = "Dr. Smith left. It rained! (He said.)"
        >>> [text[start:] for start in sentence_starts(text)][1:]
        ['It rained! (He said.)', '(He said.)']
    """
    parts = list(segment(language, encodable(text)))
    starts = accumulate(map(len, parts), initial=0)
    return [s for s, part in zip(starts, parts, strict=False) if part.strip()]


def line_starts(text: str) -> list[int]:
    r"""Return where each line that is not blank begins, in characters.

    Example:
        >>> line_starts("it rained\n\nhe said\n")
        [0, 11]
    """
    return [line.start() for line in re.finditer(r"^.*\S", text, re.MULTILINE)]
