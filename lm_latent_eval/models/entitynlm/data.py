"""Coreference annotation in files of the CoNLL-2012 shared task.

A document is a block of lines, one word a line, blank lines between sentences::

    #begin document (name); part 000
    name  0  0  Education  NN  ...  (1)
    name  0  1  of         IN  ...  -
    name  0  2  her        PRP$ ... (2(3)
    name  0  3  son        NN  ...  2)|(4
    #end document

The last column opens ``(id`` and closes ``id)`` mentions, ``(id)`` does both, and ``|``
between them is optional; ``-`` or ``_`` is neither. Columns are separated by tabs or
spaces. The word is in the fourth of eleven or more columns, or in the second of three
(number, word, coreference). Words are taken as they stand, and joined by single spaces.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from lm_latent_eval.text.files import numbered_lines

_BEGIN = re.compile(r"#\s*begin document\s*(.*)")

_END = re.compile(r"#\s*end document")

_BRACKET = re.compile(r"\((?P<only>\d+)\)|\((?P<opened>\d+)|(?P<closed>\d+)\)")

_CELL = re.compile(r"[-_]|(?:\(\d++\)?+|\d++\))(?:\|?(?:\(\d++\)?+|\d++\)))*+")
"""Coreference cell; possessive, so that a long invalid cell fails at once."""


@dataclass(frozen=True)
class Mention:
    """A mention of an entity by characters ``start`` .. ``end - 1``."""

    start: int
    end: int
    entity: int


@dataclass(frozen=True)
class CoreferenceText:
    """A text and its mentions in the order of their beginnings, outer ones first."""

    id: str
    text: str
    mentions: tuple[Mention, ...]


def read_conll(path: Path) -> list[CoreferenceText]:
    """Read the documents of a file, or of all files named ``*conll`` in a directory.

    Raises:
        ValueError: If a line is not of the format, or there is no document.
    """
    path = Path(path)
    files = sorted(path.rglob("*conll")) if path.is_dir() else [path]
    texts = [text for file in files for text in _read_file(file)]
    if not texts:
        raise ValueError(f"{path} has no documents: expected '#begin document' lines")
    return texts


def _read_file(path: Path) -> list[CoreferenceText]:
    texts: list[CoreferenceText] = []
    document: _Document | None = None
    columns: int | None = None
    after = 0
    for line_number, line in numbered_lines(path):
        if (
            line_number > after + 1
        ):  # a blank line: the next sentence has its own columns
            columns = None
        after = line_number
        try:
            if line.startswith("#") and (begin := _BEGIN.match(line)):
                if document is not None:
                    raise ValueError("the document before has no '#end document'")
                document, columns = _Document(begin[1].strip() or path.stem), None
            elif line.startswith("#") and _END.match(line):
                if document is None:
                    raise ValueError("'#end document' without '#begin document'")
                texts.append(document.finish())
                document = None
            elif document is None:
                raise ValueError("a word before '#begin document'")
            else:
                cells = line.split("\t") if "\t" in line else line.split()
                if columns not in (None, len(cells)):
                    raise ValueError(
                        f"{len(cells)} columns, after lines of {columns} in the same "
                        "sentence"
                    )
                columns = len(cells)
                document.add(_word(cells), cells[-1].strip(), line_number)
        except ValueError as err:
            raise ValueError(f"{path}, line {line_number}: {err}") from err
    if document is not None:
        raise ValueError(f"{path}, line {after}: no '#end document': cut off?")
    return texts


def _word(cells: list[str]) -> str:
    if len(cells) == 3:
        return cells[1]
    if len(cells) >= 11:
        return cells[3]
    raise ValueError(
        f"{len(cells)} columns: expected three (number, word, coreference) or those of "
        "CoNLL-2012, eleven or more; columns are separated by tabs or spaces"
    )


@dataclass
class _Document:
    name: str
    words: list[str] = field(default_factory=list)
    position: int = 0
    """Offset of the next word, in characters."""
    opened: dict[int, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Entity -> (character, line) of its open mentions' starts, the innermost last."""
    mentions: list[Mention] = field(default_factory=list)

    def add(self, word: str, cell: str, line: int) -> None:
        if not _CELL.fullmatch(cell):
            raise ValueError(
                f"{cell!r} is no coreference: expected (id, id), (id) or '-'"
            )
        end = self.position + len(word)
        for bracket in _BRACKET.finditer(cell):
            if bracket["only"]:
                self.mentions.append(Mention(self.position, end, int(bracket["only"])))
            elif bracket["opened"]:
                begin = (self.position, line)
                self.opened[int(bracket["opened"])].append(begin)
            else:
                self._close(int(bracket["closed"]), end)
        self.words.append(word)
        self.position = end + 1

    def _close(self, entity: int, end: int) -> None:
        if not self.opened[entity]:
            raise ValueError(f"'{entity})' closes a mention that nothing opened")
        start, _ = self.opened[entity].pop()
        self.mentions.append(Mention(start, end, entity))

    def finish(self) -> CoreferenceText:
        for entity, begun in self.opened.items():
            for _, line in begun:
                raise ValueError(
                    f"'({entity}' of line {line} is not closed when the document ends"
                )
        mentions = sorted(self.mentions, key=lambda m: (m.start, -m.end))
        return CoreferenceText(self.name, " ".join(self.words), tuple(mentions))
