"""Scores a file of texts into a file of estimates that a crash does not lose.

The output is JSON lines: first what the numbers depend on, then the row of each text's
record, in the order they were found. The same command goes on where an interrupted one
stopped; with other settings it refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_latent_eval
from lm_latent_eval.ledger.journal import Journal, Row
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.missed import MissedTextsError
from lm_latent_eval.scoring.records import FORMAT, Record, answer_of, row_of
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.digests import digest

TASK = "estimate"


def score_file(
    scorer: TextScorer, texts: Sequence[str], output: Path | None
) -> list[Answer]:
    """Score texts, keeping each estimate in a file as soon as it is there.

    Args:
        scorer: How to score.
        texts: N strings.
        output: The file, new or of an interrupted run; None keeps nothing.

    Returns:
        N answers, in the order of the texts.

    Raises:
        MissedTextsError: If texts have no number; it holds the answers of the others,
            which are in the file.
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, is not such a file or was edited, or another run writes it.
        NoRoomError: If the disk is full.
    """
    found: dict[int, Answer] = {}
    try:
        if output is None:
            for answer in scored(scorer, dict(enumerate(texts))):
                found[answer.index] = answer
        else:
            settings = settings_of(scorer, texts)
            journal = _journal(output)
            with journal.going_on(settings, "the estimates so far") as (rows, append):
                found |= _answers(journal, rows, len(texts))
                for n, answer in found.items():
                    if answer.text != digest(texts[n]):
                        raise journal.not_one(f"text {n} is another one there")
                left = {n: text for n, text in enumerate(texts) if n not in found}
                for answer in scored(scorer, left):
                    found[answer.index] = answer
                    append(row_of(answer))
    except MissedTextsError as err:
        raise err.leaving(found, len(texts)) from err.__cause__
    return [found[n] for n in range(len(texts))]


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record that no file keeps."""
    return Record(TASK, settings_of(scorer, texts), score_file(scorer, texts, None))


def read_record(path: Path) -> Record:
    """Read a file of estimates, whole or of an interrupted run, as a record.

    Raises:
        ValueError: If it is none, or another version's.
    """
    journal = _journal(path)
    settings, rows = journal.read()
    try:
        num_texts = num_texts_of(settings)
    except ValueError as err:
        raise journal.not_one(f"its first line says {err}") from err
    found = _answers(journal, rows, num_texts)
    finished = len(found) == num_texts
    return Record(TASK, settings, [found[n] for n in sorted(found)], finished)


def scored(scorer: TextScorer, texts: Mapping[int, str]) -> Iterator[Answer]:
    """Yield answers of texts of a corpus, given by their places in it, as found."""
    queries = [Query(n, f"text/{n}", text) for n, text in texts.items()]
    for answer in scorer.score_texts(queries):
        yield answer.about(texts[answer.index])


def _journal(path: Path) -> Journal:
    if path.exists() and not path.is_file():
        raise ValueError(f"--output {path}: estimates are kept in a regular file")
    return Journal(path, "file of estimates", FORMAT)


def settings_of(scorer: TextScorer, texts: Iterable[str]) -> dict[str, Any]:
    """Return what the numbers of a corpus depend on; its texts are read once."""
    seen = SeenTexts(texts)
    for _ in seen:
        continue
    return {
        "format": FORMAT,
        "lm_latent_eval": lm_latent_eval.__version__,
        "num_texts": seen.number,
        "texts": seen.digest,
        **scorer.fingerprint,
    }


def num_texts_of(settings: Mapping[str, Any]) -> int:
    """Return how many texts there are, by the settings of a file.

    Raises:
        ValueError: If they do not say.
    """
    said = settings.get("num_texts")
    if type(said) is not int or said < 0:
        raise ValueError(f"no num_texts but {said!a:.40}")
    return said


class SeenTexts:
    """Texts that are counted and hashed as they are read."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take texts, of which none is read yet."""
        self.number = 0
        self._texts, self._hash = texts, hashlib.sha256(b"[")

    def __iter__(self) -> Iterator[str]:
        """Read them."""
        for text in self._texts:
            comma = ", " if self.number else ""
            self._hash.update(f"{comma}{json.dumps(text)}".encode())
            self.number += 1
            yield text

    @property
    def digest(self) -> str:
        """Of the list, in JSON, of those that were read."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()[:16]


def _answers(
    journal: Journal, rows: Mapping[int, Row], num_texts: int
) -> dict[int, Answer]:
    """Return the answers of lines, by the place of their texts."""
    places: dict[int, int] = {}
    found: dict[int, Answer] = {}
    for place, row in rows.items():
        try:
            answer = answer_of(row)
        except ValueError as err:
            raise journal.edited(place, str(err)) from err
        if not 0 <= answer.index < num_texts:
            raise journal.edited(place, f"there is no text {answer.index}")
        if answer.index in places:
            twice = f"text {answer.index} is in line {places[answer.index]} too"
            raise journal.edited(place, twice)
        places[answer.index], found[answer.index] = place, answer
    return found
