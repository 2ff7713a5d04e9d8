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
from lm_latent_eval.durable import appending, only_writer, whole_lines, write_text
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.records import (
    FORMAT,
    Record,
    answer_of,
    check_format,
    line_of,
    row_of,
)
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.settings import differences

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
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, is not such a file or was edited, or another run writes it.
        NoRoomError: If the disk is full.
    """
    found: dict[int, Answer] = {}
    if output is None:
        every = dict(enumerate(texts))
        found = {answer.index: answer for answer in scored(scorer, every)}
    else:
        settings = settings_of(scorer, texts)
        with only_writer(output, "the estimates so far", lock=_lock(output)):
            found |= _resume(output, settings)
            left = {n: text for n, text in enumerate(texts) if n not in found}
            with appending(output) as append:
                for answer in scored(scorer, left):
                    found[answer.index] = answer
                    append(line_of(row_of(answer)))
    return [found[n] for n in range(len(texts))]


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record that no file keeps."""
    return Record(TASK, settings_of(scorer, texts), score_file(scorer, texts, None))


def read_record(path: Path) -> Record:
    """Read a file of estimates, whole or of an interrupted run, as a record.

    Raises:
        ValueError: If it is none, or another version's.
    """
    lines, _ = whole_lines(path)
    if 1 not in lines:
        raise _stranger(path, "its first line says no settings")
    settings = _settings_in(path, lines[1])
    found = _answers(path, lines, settings["num_texts"])
    finished = len(found) == settings["num_texts"]
    return Record(TASK, settings, [found[n] for n in sorted(found)], finished)


def scored(scorer: TextScorer, texts: Mapping[int, str]) -> Iterator[Answer]:
    """Yield answers of texts of a corpus, given by their places in it, as found."""
    queries = [Query(n, f"text/{n}", text) for n, text in texts.items()]
    for answer in scorer.score_texts(queries):
        yield answer.about(texts[answer.index])


def _lock(output: Path) -> Path:
    if output.exists() and not output.is_file():
        raise ValueError(f"--output {output}: estimates are kept in a regular file")
    file = output.resolve()
    return file.with_name(f".{file.name}.lock")


def settings_of(scorer: TextScorer, texts: Iterable[str]) -> dict[str, Any]:
    """Return what the numbers of a corpus depend on; its texts are read once."""
    number, digest = 0, hashlib.sha256(b"[")  # of the list in JSON
    for number, text in enumerate(texts, 1):
        digest.update(f"{', ' if number > 1 else ''}{json.dumps(text)}".encode())
    digest.update(b"]")
    return {
        "format": FORMAT,
        "lm_latent_eval": lm_latent_eval.__version__,
        "num_texts": number,
        "texts": digest.hexdigest()[:16],
        **scorer.fingerprint,
    }


def _resume(path: Path, settings: dict[str, Any]) -> dict[int, Answer]:
    """Read what an interrupted run has left, and make the file fit to go on with."""
    head = json.dumps(settings)
    lines, torn = whole_lines(path) if path.exists() else ({}, False)
    if 1 not in lines:
        # Nothing, or our first line cut short; anything else is not ours.
        if torn and not head.encode().startswith(path.read_bytes().rstrip(b"\0")):
            raise _stranger(path, "its first line says no settings")
        write_text(path, f"{head}\n")
        return {}
    if different := differences(_settings_in(path, lines[1]), settings):
        raise ValueError(
            f"{path} is of another run ({different}): repeat its settings to go on "
            "with it, or give --output another path to start anew"
        )
    found = _answers(path, lines, settings["num_texts"])
    if torn:
        write_text(path, "".join(f"{line.decode()}\n" for line in lines.values()))
    return found


def _settings_in(path: Path, line: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(line)
        if not isinstance(settings, dict) or "checkpoint" not in settings:
            raise ValueError("its first line says no settings")
    except (ValueError, RecursionError) as err:
        raise _stranger(path, str(err)) from err
    check_format(path, settings)
    return settings


def _answers(path: Path, lines: dict[int, bytes], num_texts: int) -> dict[int, Answer]:
    """Read every line but the first, by the place of its text."""
    places: dict[int, int] = {}
    found: dict[int, Answer] = {}
    for place, line in list(lines.items())[1:]:
        try:
            answer = answer_of(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as err:
            what = f"no {err}" if isinstance(err, KeyError) else str(err)
            raise _edited(path, place, what) from err
        if not 0 <= answer.index < num_texts:
            raise _edited(path, place, f"there is no text {answer.index}")
        if answer.index in places:
            twice = f"text {answer.index} is in line {places[answer.index]} too"
            raise _edited(path, place, twice)
        places[answer.index], found[answer.index] = place, answer
    return found


def _stranger(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is not a file of estimates ({why}): give --output another path"
    )


def _edited(path: Path, place: int, what: str) -> ValueError:
    return ValueError(
        f"{path}, line {place} is not as it was written ({what}): remove the line, and "
        "its text is scored again"
    )
