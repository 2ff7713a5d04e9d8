"""Natural text of a study: a file, or the demonstration corpus.

A study needs two texts: one that the language is trained on, and another that a model
has read before, where a figure starts from a pretrained one. No text is in both, or in
two of their files, or twice in one: what is held out has not been read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from lm_latent_eval.demo import SPLITS, other_texts
from lm_latent_eval.demo import texts as texts_of
from lm_latent_eval.distortion.study.layout import LANGUAGE_TEXT, OTHER_TEXT
from lm_latent_eval.text.corpora import stream_texts

HELD_OUT = 20
"""One text in so many is held out: half of them for validation."""
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")


def write_texts(texts: Iterator[str], directory: Path) -> None:
    """Divide texts into ``train.txt``, ``dev.txt`` and ``test.txt``, one a line.

    Raises:
        ValueError: If there are too few to hold some out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    parts = {name: directory / f"{name}.txt" for name in ("train", "dev", "test")}
    counts = dict.fromkeys(parts, 0)
    files = {name: path.open("w", encoding="utf-8") for name, path in parts.items()}
    try:
        for number, text in enumerate(texts):
            place = {HELD_OUT // 2 - 1: "dev", HELD_OUT - 1: "test"}
            name = place.get(number % HELD_OUT, "train")
            files[name].write(" ".join(text.split()) + "\n")
            counts[name] += 1
    finally:
        for file in files.values():
            file.close()
    if not all(counts.values()):
        raise ValueError(
            f"too few texts for {directory}: {counts}; expected at least {HELD_OUT}"
        )


def natural_texts(path: Path | None, part: str) -> Iterator[str]:
    """Read one of two texts, each of their texts once.

    Args:
        path: A file: of its distinct texts, every second one is what languages learn,
            and the others are what a model had read before. None is the demonstration
            corpora of two worlds.
        part: ``language`` or ``other``.
    """
    number = [LANGUAGE_TEXT, OTHER_TEXT].index(part)
    if path is not None:
        return islice(_distinct(stream_texts(path)), number, None, 2)
    first = [text for split in SPLITS for text in texts_of(split)]
    if part == LANGUAGE_TEXT:
        return _distinct(_sentences(first))
    known = {*_sentences(first)}
    return _distinct(s for s in _sentences(other_texts()) if s not in known)


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    return (sentence for text in texts for sentence in _SENTENCE.split(text))


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    """Leave out what was there before; 16 bytes of each text are kept in memory."""
    seen = set()
    for text in texts:
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield text
