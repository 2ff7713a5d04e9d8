"""Resumable scoring of a corpus into a file of estimates.

The output is JSON lines: first the settings that the numbers depend on, then the row of
each text's record. Until the last text is scored the rows are in a journal beside it.
The same command goes on where an interrupted one stopped; with other settings it
refuses.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, Self

from lm_latent_eval.files import resolved
from lm_latent_eval.ledger.journal import (
    UNFINISHED,
    Journal,
    Row,
    remove,
)
from lm_latent_eval.ledger.settings import Settings, differences, refuse_others
from lm_latent_eval.scoring.answer import Answer, MissedTextsError
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.records import (
    FORMAT,
    TASK,
    Record,
    answer_of,
    row_of,
)
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.version import __version__

KIND = "file of estimates"
SHARD = "shard"
"""Entry of the settings of a file that has only some of a corpus's texts."""
_MOST_TEXTS = 2**50
BLOCK = 1 << 17
"""Words that one process holds at a time."""
Left = Sequence[int]
"""Truth values, one a text: whether it is to be scored."""


@dataclass(frozen=True)
class Shard:
    """Every n-th text of a corpus, for one of n runs on machines of their own.

    Example:
        >>> shard = Shard.parse("2/3")
        >>> [*shard.texts(8)], str(shard)
        ([1, 4, 7], '2/3')
    """

    number: int = 1
    """Number of the shard, from 1 to ``of``."""
    of: int = 1

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read ``i/n``; None is the whole corpus.

        Raises:
            ValueError: If the value is something else.
        """
        if value is None:
            return cls()
        digits = re.fullmatch(
            r"(\d{1,9})/(\d{1,9})", value if type(value) is str else ""
        )
        number, of = map(int, digits.groups()) if digits else (0, 0)
        if not 1 <= number <= of:
            raise ValueError(f"shard {value!a:.40}: expected i/n with 1 <= i <= n")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def texts(self, num_texts: int) -> range:
        return range(self.number - 1, num_texts, self.of)


WHOLE = Shard()


def score_into(
    scorer: TextScorer, texts: Iterable[str], output: Path, shard: Shard = WHOLE
) -> None:
    """Score texts into a file, storing each estimate at once.

    Args:
        scorer: The scorer.
        texts: N strings, which are read several times: a list, or a ``TextFile``.
        output: The file, new or of an interrupted run.
        shard: The texts to score. Their numbers are those of a whole run.

    Raises:
        MissedTextsError: If texts have no number; the others are in the file.
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, is not such a file or was edited, or another run writes it.
        NoRoomError: If the disk is full.
    """
    settings = settings_of(scorer, texts, shard)

    def rows(left: Left) -> Iterator[Row]:
        return map(row_of, answers_of(scorer, texts, settings, left))

    keep(output, settings, rows)


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record in memory."""
    settings = settings_of(scorer, texts)
    answers = answers_of(scorer, texts, settings)
    return Record(TASK, settings, sorted(answers, key=lambda answer: answer.index))


def answers_of(
    scorer: TextScorer,
    texts: Iterable[str],
    settings: Settings,
    left: Left | None = None,
) -> Iterator[Answer]:
    """Yield answers of texts in any order; memory holds one block of texts.

    Args:
        scorer: The scorer.
        texts: N strings.
        settings: Settings of the run (``settings_of``).
        left: The texts to score; None: all of the shard.

    Raises:
        MissedTextsError: At the end, if texts have no number.
        ValueError: If the texts have changed since the settings were made.
    """
    missed: list[MissedTextsError] = []
    left = every_text(settings) if left is None else left
    for block in blocks(texts, left, BLOCK, settings):
        try:
            yield from scored(scorer, block)
        except MissedTextsError as err:
            missed.append(err)
    if missed:
        names = {n: name for err in missed for n, name in err.names.items()}
        raise MissedTextsError(names, missed[0].why, sum(left)) from missed[0].__cause__


def blocks(
    texts: Iterable[str], left: Left, words: int, settings: Settings
) -> Iterator[dict[int, str]]:
    """Yield blocks of about ``words`` words of the remaining texts, by their numbers.

    Raises:
        ValueError: At the end, if the texts are not those of the settings.
    """
    seen = SeenTexts(texts)
    block: dict[int, str] = {}
    size = 0
    for n, text in compress(enumerate(seen), left):
        block[n] = text
        size += len(text.split())
        if size >= words:
            yield block
            block, size = {}, 0
    if block:
        yield block
    if (seen.number, seen.digest) != (settings["num_texts"], settings["texts"]):
        raise ValueError(
            f"{texts!s:.80} changed while it was read: estimates may be of old and of "
            "new texts; begin again, with another --output"
        )


def keep(
    output: Path, settings: Settings, score: Callable[[Left], Iterable[Row]]
) -> None:
    """Score the texts that a file of estimates lacks, then write the file.

    Memory holds a few bytes a text.

    Args:
        output: The file, new or of an earlier run.
        settings: Settings of the run (``settings_of``).
        score: Yields rows of the texts that are left, in any order.

    Raises:
        MissedTextsError: If ``score`` does; rows before that are in the file.
        ValueError: As of ``score_into``.
    """
    if output.exists() and not output.is_file():
        raise ValueError(f"--output {output}: estimates are kept in a regular file")
    file, journal = _file(output), _journal(output)
    numbers = texts_of(settings)
    has_lines = _has_lines(output)
    if has_lines:
        old_settings, rows = file.read()
        refuse_others(output, old_settings, settings, KIND)
        if sum(1 for _ in _answers(file, rows, numbers)) == len(numbers):
            if journal.path.exists():  # killed just before it was removed
                remove([journal.path])
            return
    with journal.going_on(settings, "the estimates so far") as kept:
        left = every_text(settings)
        for answer in _answers(journal, kept, numbers):
            left[answer.index] = False

        def add(row: Row) -> None:
            if left[row["document"]]:  # Ray may score a text twice
                left[row["document"]] = False
                kept.add(row)

        for _, row in file.read()[1] if has_lines else ():
            add(row)
        missed = None
        try:
            for row in score(bytes(left)) if any(left) else ():
                add(row)
        except MissedTextsError as err:
            missed = err
        kept.write_sorted(output, "document")
    remove([journal.path])
    if missed is not None:  # of all texts, not of those that were left
        raise MissedTextsError(
            missed.names, missed.why, len(numbers)
        ) from missed.__cause__


def read_record(path: Path) -> Record:
    """Read a file of estimates, or the journal of an interrupted run.

    Raises:
        ValueError: If it is none, or another version's.
    """
    settings, unsorted = read_answers(path)
    answers = sorted(unsorted, key=lambda answer: answer.index)
    return Record(TASK, settings, answers, len(answers) == len(texts_of(settings)))


def read_answers(path: Path) -> tuple[Settings, Iterator[Answer]]:
    """Return the settings of a file and an iterator over its answers, in any order.

    Raises:
        ValueError: As ``read_record``; the iterator does, too.
    """
    file = _file(path) if _has_lines(path) else _journal(path)
    if not file.path.exists():
        file = _file(path)
    settings, rows = file.read()
    try:
        numbers = texts_of(settings)
    except ValueError as err:
        raise file.not_one(f"its settings say {err}") from err
    return settings, _answers(file, rows, numbers)


def is_there(path: Path) -> bool:
    """Whether there is a file of estimates, finished or partial."""
    return path.exists() or _journal(path).path.exists()


def read_shard(path: Path) -> Record | None:
    """Read a file of estimates of a shard, finished or not; None: it is another file.

    Raises:
        ValueError: If it was edited.
    """
    try:
        settings, _ = read_answers(path)
    except (OSError, ValueError):
        return None
    return read_record(path) if SHARD in settings else None


def shards_in(folder: Path) -> dict[Path, Record]:
    """Read the shards that are in a folder, finished or not."""
    names = {path.name.removesuffix(UNFINISHED) for path in folder.glob("*.jsonl")}
    paths = [folder / name for name in sorted(names)]
    return {path: record for path in paths if (record := read_shard(path))}


def together(shards: Mapping[Path, Record]) -> Record:
    """Put the shards of one run together.

    Args:
        shards: Their files and records.

    Raises:
        ValueError: If they differ in other settings, or one is missing or given twice.
    """
    paths: dict[Shard, Path] = {}
    (first, model), *_ = shards.items()
    for path, record in shards.items():
        shard = Shard.parse(record.settings.get(SHARD))
        if different := differences(
            {**record.settings, SHARD: f"i/{shard.of}"},
            {**model.settings, SHARD: f"i/{Shard.parse(model.settings.get(SHARD)).of}"},
        ):
            different = different.replace(" here", f" in {first}")
            raise ValueError(f"{path} is of another run than {first} ({different})")
        if shard in paths:
            raise ValueError(f"{path} has the same shard as {paths[shard]}: {shard}")
        paths[shard] = path
    of = next(iter(paths)).of
    if lacking := [n for n in range(1, of + 1) if Shard(n, of) not in paths]:
        raise ValueError(
            f"shard {lacking[0]}/{of} is missing"
            + (f", and {len(lacking) - 1} more are" if len(lacking) > 1 else "")
            + f": give the files of all {of}"
        )
    answers = [answer for record in shards.values() for answer in record.answers]
    return replace(
        model,
        settings={name: v for name, v in model.settings.items() if name != SHARD},
        answers=sorted(answers, key=lambda answer: answer.index),
        finished=all(record.finished for record in shards.values()),
    )


def scored(scorer: TextScorer, texts: Mapping[int, str]) -> Iterator[Answer]:
    """Yield answers of texts of a corpus, given by their numbers, in any order."""
    queries = [Query(n, f"text/{n}", text) for n, text in texts.items()]
    for answer in scorer.score_texts(queries):
        yield answer.about(texts[answer.index])


def _has_lines(path: Path) -> bool:
    """Whether a file is there and, unlike one that ``mktemp`` makes, not empty."""
    return path.exists() and path.stat().st_size > 0


def _file(path: Path) -> Journal:
    return Journal(path, KIND, FORMAT)


def _journal(path: Path) -> Journal:
    file = resolved(path)  # a link and its target have one
    return Journal(file.with_name(f"{file.name}{UNFINISHED}"), KIND, FORMAT)


def settings_of(
    scorer: TextScorer, texts: Iterable[str], shard: Shard = WHOLE
) -> dict[str, Any]:
    """Return the settings of a corpus's numbers; reads its texts once."""
    seen = SeenTexts(texts)
    for _ in seen:
        continue
    return {
        "format": FORMAT,
        "lm_latent_eval": __version__,
        "num_texts": seen.number,
        "texts": seen.digest,
        **({} if shard == WHOLE else {SHARD: str(shard)}),
        **scorer.fingerprint,
    }


def texts_of(settings: Mapping[str, Any]) -> range:
    """Return the numbers of the texts that a file is to have.

    Raises:
        ValueError: If its settings do not say.
    """
    return Shard.parse(settings.get(SHARD)).texts(num_texts_of(settings))


def num_texts_of(settings: Mapping[str, Any]) -> int:
    """Return the number of texts, by the settings of a file.

    Raises:
        ValueError: If they do not say.
    """
    num_texts = settings.get("num_texts")
    if type(num_texts) is not int or not 0 <= num_texts <= _MOST_TEXTS:
        raise ValueError(f"no num_texts but {num_texts!a:.40}")
    return num_texts


def every_text(settings: Mapping[str, Any]) -> bytearray:
    """Return truth values, one a text: whether the file is to have it."""
    wanted = bytearray(num_texts_of(settings))
    for n in texts_of(settings):
        wanted[n] = True
    return wanted


class SeenTexts:
    """Iterator that counts and hashes texts."""

    def __init__(self, texts: Iterable[str]) -> None:
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
        """Digest of the list, in JSON, of the texts that were read."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()[:16]


def _answers(
    file: Journal, rows: Iterable[tuple[int, Row]], numbers: range
) -> Iterator[Answer]:
    """Yield the answers of rows, each with its line."""
    seen = bytearray()
    for line, row in rows:
        try:
            answer = answer_of(row)
        except ValueError as err:
            raise file.edited(line, str(err)) from err
        if answer.index not in numbers:
            raise file.edited(line, f"there is no text {answer.index}")
        seen.extend(bytes(max(0, answer.index + 1 - len(seen))))
        if seen[answer.index]:
            raise file.edited(line, f"text {answer.index} is in another line too")
        seen[answer.index] = True
        yield answer
