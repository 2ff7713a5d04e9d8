"""Reading of plain texts from corpus files.

A file is of JSON lines or of lines of text: JSON if its suffix says so (``.jsonl``,
``.ndjson``, ``.json``, in any case) or its first line looks like it. Annotated text of
other kinds is refused, since its annotation would be read as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.text.words import LITERAL_UNKNOWN, encodable
from lm_latent_eval.values import checked, parse, strings

START_MARK, END_MARK = "@@START@@", "@@END@@"
_UNMARKED = {END_MARK: "\n", "@@UNKNOWN@@": LITERAL_UNKNOWN}

TREE_SUFFIXES = (".ptb", ".mrg")
"""Suffixes of files of trees in brackets, in any case."""
TABLE_SUFFIXES = (".csv", ".tsv")
"""Suffixes of tables, whose lines are no texts."""
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_JSON = re.compile(r'\s*\[?\s*\{\s*"|\s*[\[{]\s*$')
"""Beginning of JSON: an object, a list of objects, or one of them over several
lines."""
_TREE = re.compile(r"\s*\(\s*(?:[A-Z][^\s()]*)?\s*(?:\(|$)")
"""Beginning of a tree: (S (NP, ( (S, or (ROOT at the end of a line."""
_CONLL = re.compile(r"#\s*begin document")


def read_texts(path: Path) -> list[str]:
    """Read one text a line: JSON lines with ``text`` or ``tokens``, or plain text.

    Raises:
        ValueError: If the file is of neither kind or of both, has no text, or a JSON
            line is malformed; the line is named.
    """
    return [*TextFile(path)]


@dataclass(frozen=True)
class TextFile:
    """Texts of a file as ``read_texts`` returns them, read anew at each pass."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __iter__(self) -> Iterator[str]:
        return _stream(self.path)


def _stream(path: Path) -> Iterator[str]:
    records = None
    for line_number, line in numbered_lines(path):
        like_json = bool(_JSON.match(line))
        if records is None:
            _refuse_annotation(path, line)
            records = like_json or Path(path).suffix.lower() in _JSON_SUFFIXES
        if like_json and not records:
            raise ValueError(
                f"{path}, line {line_number}: JSON after lines of plain text; expected "
                'one or the other (as JSON, a text is {"text": "..."})'
            )
        yield _text(path, line_number, line) if records else line
    if records is None:
        raise ValueError(f"{path} has no text")


def holds_trees(path: Path, first_line: str | None = None) -> bool:
    """Whether a file has trees in brackets, by its name or its first line."""
    if Path(path).suffix.lower() in TREE_SUFFIXES:
        return True
    if first_line is None:
        _, first_line = next(numbered_lines(path), (0, ""))
    return bool(_TREE.match(first_line))


def holds_conll(path: Path, first_line: str | None = None) -> bool:
    """Whether a file has documents with coreference, by its first line."""
    if first_line is None:
        _, first_line = next(numbered_lines(path), (0, ""))
    return bool(_CONLL.match(first_line))


def unmarked(tokens: Sequence[str]) -> list[str]:
    r"""Tokens without the marks of Linked WikiText-2.

    Marks around a text are dropped, an end of a line within it becomes ``\n``.

    Example:
        >>> unmarked("@@START@@ First line . @@END@@ And last . @@END@@".split())
        ['First', 'line', '.', '\n', 'And', 'last', '.']
    """
    first = int(tokens[:1] == [START_MARK])
    last = len(tokens) - int(tokens[-1:] == [END_MARK])
    return [_UNMARKED.get(token, token) for token in tokens[first:last]]


def _refuse_annotation(path: Path, first_line: str) -> None:
    if Path(path).suffix.lower() in TABLE_SUFFIXES:
        raise ValueError(
            f"{path} is a table, whose header would be a text: write its column of "
            'texts as lines of a .txt file, or as JSON lines: {"text": "..."}'
        )
    kind, reader = "", ""
    if holds_trees(path, first_line):
        kind, reader = "trees in brackets", "rnng"
    elif holds_conll(path, first_line):
        kind, reader = "documents with coreference (CoNLL)", "entitynlm"
    if kind:
        raise ValueError(
            f"{path} has {kind}, which `train {reader}` reads: `lm-latent-eval text` "
            'writes their texts, as JSON lines: {"text": "..."}'
        )


def _text(path: Path, line_number: int, line: str) -> str:
    try:
        record = checked(parse(line), dict, "a line")
        text, words = record.get("text"), None
        if "tokens" in record:
            words = unmarked(strings(record["tokens"], "tokens"))
        if "text" not in record:
            if words is None:
                raise ValueError("there is neither")
            return encodable(" ".join(words))
        text = encodable(checked(text, str, "text"))
        if words is not None and "".join("".join(words).split()) != "".join(
            text.split()
        ):
            raise ValueError("they are two texts: leave one out")
        return text
    except (ValueError, TypeError) as err:
        raise ValueError(
            f'{path}, line {line_number}: expected {{"text": "..."}} or '
            f'{{"tokens": ["...", ...]}}, one a line ({err})'
        ) from err
