"""Tables of surprisal, a row a word: made in Python, or from file to file.

Surprisal is -log p(word | what stands before it), with the Monte Carlo error of that
number. The end of a text (of a sentence, where the model is one of sentences) has a row
of its own, so the rows of a text add up to what ``estimate`` says of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lm_latent_eval.estimators import Bound
from lm_latent_eval.files import replacing, resolved
from lm_latent_eval.ledger.journal import UNFINISHED, Journal, remove
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.scoring.files import SeenTexts
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import TABLE_SUFFIXES, read_texts
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.values import parse
from lm_latent_eval.version import __version__

KIND, FORMAT = "table of surprisals", 1
END = "</s>"
"""The word of a row of an end."""
TEXTS = 64
"""Texts that are scored together, at most, and then kept."""
COLUMNS = {
    "text_id": "Int64",
    "word_number": "Int64",
    "word": "object",
    "surprisal_bits": "Float64",
    "surprisal_nats": "Float64",
    "error_bits": "Float64",
    "error_nats": "Float64",
    "bound": "object",
    "characters": "Int64",
    "bytes": "Int64",
    "unknown": "boolean",
    "unknown_charged": "object",
}
"""Columns of a table, with the types of pandas."""
Row = dict[str, Any]


def table(
    scorer: TextScorer, texts: Sequence[str], *, regions: bool = False
) -> pd.DataFrame:
    """Return the surprisal of each word of texts.

    Args:
        scorer: How to score.
        texts: N strings.
        regions: Whether ``|`` marks regions in them, which take the place of words.

    Returns:
        A row a word, and one an end, in the order of the texts. Where no error can be
        told it is ``NA``, and so are the number and the size of an end.

    Raises:
        MissedTextsError: If texts have no number; its ``answers`` are empty.
        ValueError: If the model gives prefixes no probability, or a text cannot be
            scored.
    """
    cut = _divided(texts, regions)
    rows = dict(_rows(scorer, cut))
    return _frame(row for n in range(len(texts)) for row in rows[n])


def _frame(rows: Iterable[Row]) -> pd.DataFrame:
    frame = pd.DataFrame([*rows])
    names = [name for name in frame.columns if name not in COLUMNS]
    frame = frame.reindex(columns=["text_id", *names, *[*COLUMNS][1:]])
    return frame.astype(COLUMNS)


def _divided(texts: Sequence[str], marked: bool) -> list[Regions]:
    return [
        Regions.of_marks(n, f"text/{n}", text)
        if marked
        else Regions.of_words(Query(n, f"text/{n}", text))
        for n, text in enumerate(texts)
    ]


def _rows(
    scorer: TextScorer, texts: Sequence[Regions]
) -> Iterator[tuple[int, list[Row]]]:
    """Yield the rows of each text, in any order.

    Raises:
        ValueError: If the scorer gives prefixes no probability.
    """
    of = {regions.query.index: regions for regions in texts}
    for index, scores in scorer.score_regions(texts):
        policy = scorer.unknown_words
        yield index, [_row(of[index], score, policy) for score in scores]


def _row(regions: Regions, score: RegionScore, policy: str) -> Row:
    estimate, region = score.estimate, score.number
    nats, error = -estimate.log_evidence, estimate.stderr
    string = None if region is None else regions.strings[region]
    return {
        "text_id": regions.query.index,
        "word_number": None if region is None else region + 1,
        "word": END if string is None else string,
        "surprisal_bits": nats / math.log(2),
        "surprisal_nats": nats,
        "error_bits": None if error is None else error / math.log(2),
        "error_nats": error,
        "bound": str(_of_surprisal(estimate.bound)),
        "characters": None if string is None else len(string),
        "bytes": None if string is None else len(string.encode()),
        "unknown": score.unknown > 0,
        "unknown_charged": policy if score.unknown else None,
    }


def _of_surprisal(bound: Bound) -> Bound:
    """Return the bound of a difference of two estimates, which is none."""
    return bound if bound is Bound.EXACT else Bound.NONE


# -- from file to file -----------------------------------------------------------------


@dataclass(frozen=True)
class Stimuli:
    """Texts with what else their file says of each."""

    texts: list[str]
    columns: list[dict[str, Any]]
    """Other columns of each text."""

    @classmethod
    def read(cls, path: Path, column: str = "text") -> Stimuli:
        """Read a table (``.csv``, ``.tsv``), JSON lines or lines of text.

        Args:
            path: The file.
            column: Where a table, or an object of JSON, has the text.

        Raises:
            ValueError: If there is no such column, or a text is empty.
        """
        if path.suffix.lower() in TABLE_SUFFIXES:
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            try:
                read = pd.read_csv(path, sep=separator, dtype=str, na_filter=False)
            except (pd.errors.ParserError, UnicodeDecodeError) as err:
                raise ValueError(f"{path} is no table ({err})") from err
            records: list[dict[str, Any]] = read.to_dict("records")
        else:
            texts = read_texts(path)
            lines = [line for _, line in numbered_lines(path)]
            if not _is_json(path, lines[0]):
                return cls(texts, [{} for _ in texts])
            records = [parse(line) for line in lines]
            if column == "text":  # or what ``tokens`` say
                pairs = zip(records, texts, strict=True)
                records = [{**record, "text": text} for record, text in pairs]
        if missing := [n for n, record in enumerate(records) if column not in record]:
            raise ValueError(
                f"{path} has no column {column!r} (row {missing[0] + 1} has "
                f"{', '.join(records[missing[0]])}): name it by --column"
            )
        if empty := [n for n, r in enumerate(records) if not str(r[column]).strip()]:
            raise ValueError(f"{path}, row {empty[0] + 1}: the text is empty")
        return cls([str(record[column]) for record in records], records)


def _is_json(path: Path, line: str) -> bool:
    return line.lstrip().startswith("{")


def write(
    scorer: TextScorer, stimuli: Stimuli, output: Path, *, regions: bool = False
) -> pd.DataFrame:
    """Score texts into a table; a killed run goes on.

    Args:
        scorer: How to score.
        stimuli: The texts; their other columns stand in the rows of each.
        output: ``.csv``, ``.tsv`` or ``.jsonl``.
        regions: As of ``table``.

    Returns:
        The table.

    Raises:
        MissedTextsError: If texts have no number; those of the others are in the table.
        ValueError: If a column of the texts has the name of one of the output, the
            journal beside the output is of other settings or texts, or as of ``table``.
    """
    if output.suffix.lower() not in (*TABLE_SUFFIXES, ".jsonl"):
        raise ValueError(f"--output {output}: expected .csv, .tsv or .jsonl")
    if taken := COLUMNS.keys() & {name for row in stimuli.columns for name in row}:
        raise ValueError(
            f"--data has a column {min(taken)!r}, as the output has: rename it"
        )
    seen = SeenTexts(stimuli.texts)
    cut = _divided([*seen], regions)
    settings = {
        "lm_latent_eval": __version__,
        "num_texts": seen.number,
        "texts": seen.digest,
        "regions": regions,
        **scorer.fingerprint,
    }
    target = resolved(output)
    journal = Journal(target.with_name(f"{target.name}{UNFINISHED}"), KIND, FORMAT)
    found: dict[int, list[Row]] = {}
    missed: MissedTextsError | None = None
    with journal.going_on(settings, "the texts so far") as kept:
        for _, row in kept:
            found[row["document"]] = row["rows"]
        left = [regions for regions in cut if regions.query.index not in found]
        for first in range(0, len(left), TEXTS):
            try:
                for index, rows in _rows(scorer, left[first : first + TEXTS]):
                    found[index] = rows
                    kept.add({"document": index, "rows": rows})
            except MissedTextsError as err:
                names = err.names | (missed.names if missed else {})
                missed = MissedTextsError(names, err.why, len(cut))
        frame = _frame(
            {**stimuli.columns[n], **row} for n in sorted(found) for row in found[n]
        )
        with replacing(output) as partial:
            if output.suffix.lower() == ".jsonl":
                frame.to_json(partial, orient="records", lines=True, force_ascii=False)
            else:
                separator = "\t" if output.suffix.lower() == ".tsv" else ","
                frame.to_csv(partial, sep=separator, index=False, na_rep="N/A")
    remove([journal.path])
    if missed is not None:
        raise missed
    return frame


def shown(frame: pd.DataFrame) -> str:
    """Return the words of a table with surprisal and error, as plain text."""
    part = frame[["text_id", "word", "surprisal_bits", "error_bits", "unknown"]]
    return str(part.to_string(index=False, na_rep="N/A", float_format="{:.4f}".format))
