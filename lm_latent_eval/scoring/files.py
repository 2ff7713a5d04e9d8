"""Scores a file of texts into a file of estimates that a crash does not lose.

The output is JSON lines: first what the numbers depend on, then one estimate a text, in
the order they were found. The same command goes on where an interrupted one stopped;
with other settings it refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import lm_latent_eval
from lm_latent_eval.durable import appending, only_writer, whole_lines, write_text
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.metrics import Scored
from lm_latent_eval.scoring.records import Record, Row, plain
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.settings import differences
from lm_latent_eval.text.digests import digest

T = TypeVar("T")

_INFINITE = ("inf", "-inf", "nan")
"""How ``plain`` writes what JSON has no number for."""


def score_file(
    scorer: TextScorer, texts: Sequence[str], output: Path | None
) -> list[Scored]:
    """Score texts, keeping each estimate in a file as soon as it is there.

    Args:
        scorer: How to score.
        texts: N strings.
        output: The file, new or of an interrupted run; None keeps nothing.

    Returns:
        N estimates with the texts' sizes, in their order.

    Raises:
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, is not such a file or was edited, or another run writes it.
        NoRoomError: If the disk is full.
    """
    found: dict[int, Answer] = {}
    if output is None:
        for answer in scorer.score_texts(_queries(dict(enumerate(texts)))):
            found[answer.index] = answer
    else:
        settings = settings_of(scorer, texts)
        with only_writer(output, "the estimates so far", lock=_lock(output)):
            found |= _resume(output, settings, len(texts))
            with appending(output) as append:
                left = {n: t for n, t in enumerate(texts) if n not in found}
                for answer in scorer.score_texts(_queries(left)):
                    found[answer.index] = answer
                    line = {**_record(answer), **_sizes(texts[answer.index])}
                    append(json.dumps(line).encode() + b"\n")
    return [Scored.of(text, found[n]) for n, text in enumerate(texts)]


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record that no file keeps."""
    rows = score_rows(scorer, dict(enumerate(texts)))
    return Record("estimate", settings_of(scorer, texts), rows)


def score_rows(scorer: TextScorer, texts: Mapping[int, str]) -> list[Row]:
    """Score some texts of a corpus, by their places in it, into rows in that order."""
    answers = scorer.score_texts(_queries(texts))
    rows = (_row(answer, _sizes(texts[answer.index])) for answer in answers)
    return sorted(rows, key=lambda row: row.document)


def _lock(output: Path) -> Path:
    if output.exists() and not output.is_file():
        raise ValueError(f"--output {output}: estimates are kept in a regular file")
    file = output.resolve()
    return file.with_name(f".{file.name}.lock")


def _queries(texts: Mapping[int, str]) -> list[Query]:
    return [Query(n, f"text/{n}", text) for n, text in texts.items()]


def settings_of(scorer: TextScorer, texts: Iterable[str]) -> dict[str, Any]:
    """Return what the numbers of texts depend on, which are read once."""
    return {
        "lm_latent_eval": lm_latent_eval.__version__,
        "texts": _digest_of(texts),
        **scorer.fingerprint,
    }


def _digest_of(texts: Iterable[str]) -> str:
    """Return the digest of a list of texts in JSON, which is not made."""
    found = hashlib.sha256(b"[")
    for n, text in enumerate(texts):
        found.update(f"{', ' if n else ''}{json.dumps(text)}".encode())
    found.update(b"]")
    return found.hexdigest()[:16]


def _resume(path: Path, settings: dict[str, Any], num_texts: int) -> dict[int, Answer]:
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
    places: dict[int, int] = {}
    found = {}
    for place, line in list(lines.items())[1:]:
        answer = _checked_answer(path, place, line, num_texts)
        if (index := answer.index) in places:
            raise _edited(path, place, f"text {index} is in line {places[index]} too")
        places[index], found[index] = place, answer
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
    return settings


def _checked_answer(path: Path, place: int, line: bytes, num_texts: int) -> Answer:
    try:
        answer = _answer(json.loads(line))
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        what = f"no {err}" if isinstance(err, KeyError) else str(err)
        raise _edited(path, place, what) from err
    if not 0 <= answer.index < num_texts:
        raise _edited(path, place, f"there is no text {answer.index}")
    return answer


def _stranger(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is not a file of estimates ({why}): give --output another path"
    )


def _edited(path: Path, place: int, what: str) -> ValueError:
    return ValueError(
        f"{path}, line {place} is not as it was written ({what}): remove the line, and "
        "its text is scored again"
    )


def _record(answer: Answer) -> dict[str, Any]:
    estimate = asdict(answer.estimate)
    log_weights = list(estimate.pop("log_weights"))
    return {
        "index": answer.index,
        "log_likelihood": estimate.pop("log_evidence"),
        **{name: plain(value) for name, value in estimate.items()},
        "stream": answer.stream,
        "unknown_words_not_spelled": answer.unspelled,
        "gaps_not_charged": answer.respaced,
        "sentences": answer.sentences,
        "evaluations": answer.evaluations,
        "log_weights": [plain(log_w) for log_w in log_weights],
    }


def _sizes(text: str) -> dict[str, Any]:
    scored = Scored.exact(text, 0.0)
    return {"text": digest(text), "words": scored.words, "bytes": scored.bytes}


def read_record(path: Path) -> Record:
    """Read a file of estimates, whole or of an interrupted run, as a record.

    Raises:
        ValueError: If it is none, or of a version that did not write sizes of texts.
    """
    lines, _ = whole_lines(path)
    if 1 not in lines:
        raise _stranger(path, "its first line says no settings")
    settings = _settings_in(path, lines[1])
    rows = []
    for place, line in list(lines.items())[1:]:
        try:
            values = json.loads(line)
            rows.append(_row(_answer(values), values))
        except (ValueError, TypeError, KeyError, RecursionError) as err:
            raise _edited(path, place, f"{err!r:.200}") from err
    return Record("estimate", settings, sorted(rows, key=lambda row: row.document))


def _row(answer: Answer, values: dict[str, Any]) -> Row:
    scored = Scored(
        answer.estimate,
        answer.stream,
        answer.unspelled,
        answer.respaced,
        values["words"],
        values["bytes"],
    )
    return Row.of(
        answer,
        scored,
        text=values["text"],
        document=answer.index,
    )


def _answer(record: Any) -> Answer:
    """Read a record back.

    Raises:
        KeyError: If a field is missing.
        TypeError: If a field is of another type, or there is no record.
        ValueError: If the fields make no estimate.
    """
    if not isinstance(record, dict):
        raise TypeError("no record")
    estimate = Estimate(
        log_evidence=_number(record, "log_likelihood"),
        stderr=_perhaps(record, "stderr"),
        draws_stderr=_number(record, "draws_stderr"),
        effective_sample_size=_perhaps(record, "effective_sample_size"),
        pareto_k=_perhaps(record, "pareto_k"),
        num_samples=_typed(record, "num_samples", int),
        num_tokens=_typed(record, "num_tokens", int),
        bound=Bound(_typed(record, "bound", str)),
        estimator=_typed(record, "estimator", str),
        log_weights=tuple(
            _number({"log_weights": log_w}, "log_weights")
            for log_w in _typed(record, "log_weights", list)
        ),
        unseen=_perhaps(record, "unseen"),
        upper=_perhaps(record, "upper"),
    )
    for name, kind in (("text", str), ("words", int), ("bytes", int)):
        _typed(record, name, kind)
    return Answer(
        _typed(record, "index", int),
        estimate,
        _typed(record, "stream", str),
        _typed(record, "unknown_words_not_spelled", int),
        _typed(record, "gaps_not_charged", int),
        _typed(record, "sentences", int),
        evaluations=_typed(record, "evaluations", int),
    )


def _typed(record: dict[str, Any], name: str, kind: type[T]) -> T:
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.40}")
    return value


def _number(record: dict[str, Any], name: str) -> float:
    if record[name] in _INFINITE or isinstance(record[name], float):
        return float(record[name])
    return float(_typed(record, name, int))


def _perhaps(record: dict[str, Any], name: str) -> float | None:
    return None if record[name] is None else _number(record, name)
