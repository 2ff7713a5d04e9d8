r"""Sentences with constituency trees, in the brackets of the Penn Treebank.

    (ROOT (S (NP-SBJ (PRP We)) (VP (VBP do) (RB n't) (VP (VB agree))) (. .)))

Labels are read over, and with them functions; traces (``-NONE-``) vanish, and with them
what holds nothing else; unary chains collapse; punctuation stays where it is.

The words of the checkpoint's tokenizer are not those of the treebank: ``do n't`` is one
word, an address several. So a tree is laid over the tokenizer's words: the sentence is
written as a string, every word belongs to the leaf of its first character, and a leaf
of several words becomes a constituent. What has one word then, or none, collapses.

Constituents of more than two parts are made binary as in the original program: all
parts are shifted, then reduced at once, so they branch to the right.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lm_latent_eval.text.corpora import TREE_SUFFIXES, holds_trees, read_texts
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.text.words import END, WordTokenizer

TRACE = "-NONE-"
_JOINS_LEFT = frozenset(["HYPH", "''", "-RRB-", "-RSB-", "-RCB-", *".,;:!?%)]}…"])
_JOINS_RIGHT = frozenset(["HYPH", "``", "-LRB-", "-LSB-", "-LCB-", *"([{$#"])
"""Leaves or tags that no space separates from their neighbour."""
_ESCAPED = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
    "``": '"',
    "''": '"',
}
_CLITIC = re.compile(r"n['’]t|['’](?:s|re|ve|ll|d|m)", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its constituents of at least two leaves."""

    text: str
    leaves: tuple[int, ...]
    """Offset of each leaf of the treebank in the text, in characters."""
    constituents: frozenset[tuple[int, int]]
    """First and last leaf of each constituent."""


def read_sentences(path: Path) -> list[ParsedSentence] | list[str]:
    """Read a treebank (a folder, or a file of brackets) or one sentence a line.

    Raises:
        ValueError: If the file is malformed.
    """
    if path.is_dir() or (path.is_file() and holds_trees(path)):
        return read_treebank(path)
    return read_texts(path)


def read_treebank(path: Path) -> list[ParsedSentence]:
    """Read a file of brackets, or every file of a folder with ``TREE_SUFFIXES``.

    Raises:
        ValueError: If brackets are malformed (file and line are named), or there are
            none.
    """
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in TREE_SUFFIXES)
    sentences = [sentence for file in files for sentence in _read_file(file)]
    if not sentences:
        raise ValueError(f"{path} has no trees: expected brackets like (S (NP (NN ...")
    return sentences


def reduces(
    sentence: ParsedSentence, tokenizer: WordTokenizer
) -> tuple[list[int], list[int]]:
    """Lay a tree over the tokenizer's words.

    Returns:
        Word ids with the end word, and the number of REDUCEs before each.
    """
    words = tokenizer(sentence.text)
    leaf_of = [bisect_right(sentence.leaves, start) - 1 for start in words.starts]
    # The first word of every leaf, and one past the last.
    first = [bisect_right(leaf_of, leaf - 1) for leaf in range(len(sentence.leaves))]
    first.append(len(words.ids))
    spans = {(first[i], first[j + 1] - 1) for i, j in sentence.constituents}
    spans |= {(first[i], first[i + 1] - 1) for i in range(len(sentence.leaves))}
    spans.add((0, len(words.ids) - 1))
    return [*words.ids, END], count_reduces(spans, len(words.ids))


def count_reduces(spans: Iterable[tuple[int, int]], num_words: int) -> list[int]:
    """Count the REDUCEs before each word, and after the last, of nested spans.

    Example:
        >>> count_reduces([(0, 1), (0, 3)], 4)  # ((a b) c d) is ((a b) (c d))
        [0, 0, 1, 0, 2]
    """
    ending: list[list[int]] = [[] for _ in range(num_words)]
    for i, j in sorted(spans, reverse=True):
        if i < j:
            ending[j].append(i)  # the shortest first
    counts = [0] * (num_words + 1)
    begins: list[int] = []
    for j in range(num_words):
        begins.append(j)
        for i in ending[j]:
            while begins[-1] > i:
                begins.pop()
                counts[j + 1] += 1
    return counts


def _read_file(path: Path) -> Iterator[ParsedSentence]:
    # Of each open bracket: its line, what it holds so far.
    open_brackets: list[tuple[int, list[str | list[int]]]] = []
    tree = _Tree()
    for line, atom in _atoms(path):
        if atom == "(":
            open_brackets.append((line, []))
            continue
        if not open_brackets:
            raise ValueError(f"{path}, line {line}: {atom!r} stands outside a bracket")
        if atom != ")":
            open_brackets[-1][1].append(atom)
            continue
        _, parts = open_brackets.pop()
        leaves = tree.close(parts)
        if leaves is None:
            raise ValueError(
                f"{path}, line {line}: a bracket holds "
                f"{' '.join(p if isinstance(p, str) else '(...)' for p in parts)!r}; "
                "expected a label and a word, or a label and brackets"
            )
        if open_brackets:
            open_brackets[-1][1].append(leaves)
            continue
        if tree.words:
            yield tree.sentence()
        tree = _Tree()
    if open_brackets:
        raise ValueError(
            f"{path}, line {open_brackets[-1][0]}: the bracket that opens here is "
            "never closed"
        )


def _atoms(path: Path) -> Iterator[tuple[int, str]]:
    for line_number, line in numbered_lines(path):
        for atom in re.findall(r"[()]|[^\s()]+", line):
            yield line_number, atom


class _Tree:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.tags: list[str] = []
        self.constituents: set[tuple[int, int]] = set()

    def close(self, parts: list[str | list[int]]) -> list[int] | None:
        """Close a bracket and return its leaves; None if it is malformed."""
        match parts:
            case [str(tag), str()] if tag == TRACE:
                return []
            case [str(tag), str(word)]:
                self.words.append(_ESCAPED.get(word, word))
                self.tags.append(tag)
                return [len(self.words) - 1]
        inner = [p for p in parts if not isinstance(p, str)]
        labels = parts[:1] if parts and isinstance(parts[0], str) else []
        if not inner or len(labels) + len(inner) != len(parts):
            return None
        leaves = [leaf for part in inner for leaf in part]
        if len(leaves) > 1:
            self.constituents.add((leaves[0], leaves[-1]))
        return leaves

    def sentence(self) -> ParsedSentence:
        text, starts = "", []
        joined = True
        for word, tag in zip(self.words, self.tags, strict=True):
            marks = {word, tag if tag not in ".,:" else word}
            if not joined and not marks & _JOINS_LEFT and not _CLITIC.fullmatch(word):
                text += " "
            starts.append(len(text))
            text += word
            joined = bool(marks & _JOINS_RIGHT)
        return ParsedSentence(text, tuple(starts), frozenset(self.constituents))
