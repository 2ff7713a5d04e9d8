"""Resumable scoring of a corpus into a file of estimates.

The output is JSON lines: first what the numbers depend on, then the row of each text's
record. Until the last text is scored they are in a ledger beside it. The same command
goes on where an interrupted one stopped; with other settings it refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from lm_latent_eval.ledger.database import UNFINISHED, Found, Ledger, Row, remove
from lm_latent_eval.ledger.folder import SETTINGS_FILE
from lm_latent_eval.ledger.lines import LinesFile
from lm_latent_eval.ledger.settings import FormatError, Settings, refuse_others
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.missed import MissedTextsError
from lm_latent_eval.scoring.records import FORMAT, Record, answer_of, row_of
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.digests import digest
from lm_latent_eval.version import __version__

TASK = "estimate"
KIND = "file of estimates"
Left = Sequence[int]
"""Truth values, one a text: which are to be scored."""


def score_file(
    scorer: TextScorer, texts: Sequence[str], output: Path | None
) -> list[Answer]:
    """Score texts, keeping each estimate as soon as it is there.

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

    def find(left: Left) -> Iterator[Row]:
        for answer in scored(scorer, dict(compress(enumerate(texts), left))):
            yield row_of(answer)

    if output is not None:
        answers = keep(output, settings_of(scorer, texts), find).answers
        for answer, text in zip(answers, texts, strict=True):
            if answer.text != digest(text):
                raise _file(output).not_one(f"text {answer.index} is another one there")
        return [*answers]
    found: dict[int, Answer] = {}
    try:
        for answer in scored(scorer, dict(enumerate(texts))):
            found[answer.index] = answer
    except MissedTextsError as err:
        raise err.leaving(found, len(texts)) from err.__cause__
    return [found[n] for n in range(len(texts))]


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record that no file keeps."""
    return Record(TASK, settings_of(scorer, texts), score_file(scorer, texts, None))


def keep(
    output: Path, settings: Settings, find: Callable[[Left], Iterable[Row]]
) -> Record:
    """Find what a file of estimates lacks, and write it when that has ended.

    Args:
        output: The file, new or of an earlier run.
        settings: What the numbers depend on (``settings_of``).
        find: Yields rows of the texts that are left, as they are found.

    Returns:
        All that is in the file.

    Raises:
        MissedTextsError: If ``find`` does; what it has found is in the file.
        ValueError: As of ``score_file``.
    """
    if (output / SETTINGS_FILE).exists():
        raise FormatError(
            f"{output} is a folder, as `estimate --workers` wrote in lm-latent-eval "
            "0.2: finish it with that version, or give --output the path of a file"
        )
    if output.exists() and not output.is_file():
        raise ValueError(f"--output {output}: estimates are kept in a regular file")
    file, ledger = _file(output), _ledger(output)
    num_texts, before = num_texts_of(settings), dict[int, Row]()
    if output.exists() and output.stat().st_size:
        theirs, before = file.read()
        refuse_others(output, theirs, settings, KIND)
        known = _answers(file, before.items(), num_texts)
        if len(known) == num_texts:
            if ledger.path.exists():  # killed just before it was removed
                remove([ledger.path])
            return _record(settings, known)
    missed = None
    with ledger.going_on(settings, "the estimates so far") as rows:
        for row in before.values():
            rows.add(TASK, (row["document"],), row)
        left = bytearray([True]) * num_texts
        for n in _answers(ledger, _placed(rows), num_texts):
            left[n] = False
        try:
            for row in find(left) if any(left) else ():
                rows.add(TASK, (row["document"],), row)
        except MissedTextsError as err:
            missed = err
        file.write(settings, (row for _, row in _placed(rows)))
        record = _record(settings, _answers(ledger, _placed(rows), num_texts))
    remove([ledger.path])
    if missed is not None:
        found = {answer.index: answer for answer in record.answers}
        raise missed.leaving(found, num_texts) from missed.__cause__
    return record


def read_record(path: Path) -> Record:
    """Read a file of estimates, or what a run that was killed has for it.

    Raises:
        ValueError: If it is none, or another version's.
    """
    file, ledger = _file(path), _ledger(path)
    if ledger.path.exists() and not path.exists():
        settings, rows = ledger.read()
        return _read(ledger, settings, _placed(rows))
    settings, lines = file.read()
    return _read(file, settings, lines.items())


def is_there(path: Path) -> bool:
    """Whether there is a file of estimates, or what a killed run has for it."""
    return path.exists() or _ledger(path).path.exists()


def _read(
    file: LinesFile | Ledger, settings: Settings, rows: Iterable[tuple[int, Row]]
) -> Record:
    try:
        num_texts = num_texts_of(settings)
    except ValueError as err:
        raise file.not_one(f"its settings say {err}") from err
    return _record(settings, _answers(file, rows, num_texts))


def _record(settings: Settings, found: Mapping[int, Answer]) -> Record:
    answers = [found[n] for n in sorted(found)]
    return Record(TASK, settings, answers, len(found) == num_texts_of(settings))


def scored(scorer: TextScorer, texts: Mapping[int, str]) -> Iterator[Answer]:
    """Yield answers of texts of a corpus, given by their places in it, as found."""
    queries = [Query(n, f"text/{n}", text) for n, text in texts.items()]
    for answer in scorer.score_texts(queries):
        yield answer.about(texts[answer.index])


def _file(path: Path) -> LinesFile:
    return LinesFile(path, KIND, FORMAT)


def _ledger(path: Path) -> Ledger:
    file = path.resolve()  # a link and what it points to have one
    return Ledger(file.with_name(f"{file.name}{UNFINISHED}"), KIND, FORMAT)


def settings_of(scorer: TextScorer, texts: Iterable[str]) -> dict[str, Any]:
    """Return what the numbers of a corpus depend on; its texts are read once."""
    seen = SeenTexts(texts)
    for _ in seen:
        continue
    return {
        "format": FORMAT,
        "lm_latent_eval": __version__,
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


def _placed(rows: Iterable[Found]) -> Iterator[tuple[int, Row]]:
    return ((found.place, found.row) for found in rows)


def _answers(
    file: LinesFile | Ledger, rows: Iterable[tuple[int, Row]], num_texts: int
) -> dict[int, Answer]:
    """Return the answers of rows (place, values), by the place of their texts."""
    places: dict[int, int] = {}
    found: dict[int, Answer] = {}
    for place, row in rows:
        try:
            answer = answer_of(row)
        except ValueError as err:
            raise file.edited(place, str(err)) from err
        if not 0 <= answer.index < num_texts:
            raise file.edited(place, f"there is no text {answer.index}")
        if answer.index in places:
            twice = f"text {answer.index} is in line {places[answer.index]} too"
            raise file.edited(place, twice)
        places[answer.index], found[answer.index] = place, answer
    return found
