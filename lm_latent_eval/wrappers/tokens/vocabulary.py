"""Bytes of each token of a tokenizer.

A tokenizer's decoder writes the first token of a sequence and later ones differently
if it drops a space at the beginning (SentencePiece) or puts one between words
(WordPiece). Byte-level tokenizers write both alike.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

Pieces = tuple[bytes | None, ...]
"""Token -> its bytes; None if it never enters a segmentation."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""Names of byte tokens in SentencePiece."""


@dataclass(frozen=True)
class ByteTable:
    """Table of the tokens that write given bytes."""

    pieces: Pieces

    @cached_property
    def tokens(self) -> dict[bytes, list[int]]:
        """Bytes -> all tokens that write them, byte tokens included."""
        tokens: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece is not None:
                tokens.setdefault(piece, []).append(token)
        return tokens

    @cached_property
    def lengths(self) -> list[int]:
        """Distinct lengths of pieces, ascending."""
        return sorted({len(piece) for piece in self.tokens})

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self.tokens)

    def within(self, target: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Tokens that write the target from ``start`` to at most ``stop``, and ends."""
        for length in self.lengths:
            if start + length > stop:
                return
            for token in self.tokens.get(target[start : start + length], ()):
                yield token, start + length

    def beyond(self, rest: bytes) -> list[int]:
        """Tokens that write ``rest`` and more."""
        ordered = self._sorted
        tokens = []
        for piece in ordered[bisect_left(ordered, rest) :]:
            if not piece.startswith(rest):
                break
            if len(piece) > len(rest):
                tokens += self.tokens[piece]
        return tokens

    def has_space(self, token: int, place: int = 0) -> bool:
        """Whether a token writes white space as its byte of that place."""
        piece = self.pieces[token] or b""
        return piece[place : place + 1].isspace()


@dataclass(frozen=True)
class ByteVocabulary:
    """The tokens of a tokenizer as bytes."""

    first: ByteTable
    """Table of tokens at the beginning of a text."""
    later: ByteTable
    """Table of tokens after another one."""
    special: dict[int, bytes]
    """Special tokens -> their spelling."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, size: int) -> ByteVocabulary:
        """Read a tokenizer.

        Args:
            tokenizer: The tokenizer.
            size: Number of tokens of the network; others never enter a segmentation.

        Raises:
            ValueError: If it is a slow one, whose decoder is unknown.
        """
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(
                f"{type(tokenizer).__name__} is a slow tokenizer: what its tokens "
                "write is not known. Use the fast one (use_fast_tokenizer=True)"
            )
        added = tokenizer.added_tokens_decoder
        marks = {token: str(one) for token, one in added.items() if one.special}
        marks |= {
            token: str(tokenizer.convert_ids_to_tokens(token))
            for token in tokenizer.all_special_ids
        }
        names: list[str | None] = [None] * size
        for name, token in tokenizer.get_vocab().items():
            if token not in marks and token < size:
                names[token] = name
        plain = {token: str(one).encode() for token, one in added.items()}
        first, later = _pieces(backend, names, plain)
        return cls(
            ByteTable(first),
            ByteTable(later),
            {t: name.encode() for t, name in marks.items()},
        )

    def write(self, tokens: Sequence[int], *, begins: bool) -> list[bytes]:
        """Bytes of each token of a sequence; special tokens are spelled out.

        Args:
            tokens: The sequence.
            begins: Whether a text begins with it.
        """
        written = []
        for index, token in enumerate(tokens):
            table = self.first if begins and index == 0 else self.later
            piece = table.pieces[token] if token < len(table.pieces) else None
            written.append(self.special.get(token, b"") if piece is None else piece)
        return written


def _pieces(
    backend: Any, names: Sequence[str | None], added: dict[int, bytes]
) -> tuple[Pieces, Pieces]:
    decoder = json.loads(backend.to_str())["decoder"]
    kinds = set(_kinds(decoder))
    if "ByteLevel" in kinds:
        letters = byte_level()
        pieces = tuple(
            None if name is None else added.get(token, bytes_of(name, letters))
            for token, name in enumerate(names)
        )
        return pieces, pieces

    def decode(*tokens: str) -> str:
        written: str = (
            backend.decoder.decode([*tokens]) if decoder else " ".join(tokens)
        )
        return written

    anchor = next(name for name in names if name and decode(name).isalnum())
    before = len(decode(anchor))
    first: list[bytes | None] = []
    later: list[bytes | None] = []
    for name in names:
        byte = BYTE.fullmatch(name or "") if "ByteFallback" in kinds else None
        if name is None:
            first.append(None)
            later.append(None)
        elif byte and int(byte[1], 16) > 127:  # a piece of a character
            first.append(bytes.fromhex(byte[1]))
            later.append(bytes.fromhex(byte[1]))
        else:
            first.append(decode(name).encode())
            later.append(decode(anchor, name)[before:].encode() or None)
    return tuple(first), tuple(later)


def _kinds(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder is not None:
        yield decoder["type"]
        for part in decoder.get("decoders", ()):
            yield from _kinds(part)


def byte_level() -> dict[str, int]:
    """Letters of byte-level tokenizers -> bytes.

    Printable characters of Latin-1 stand for themselves, the characters from 256 on for
    the other bytes, in order.
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in own)
    shifted = {chr(256 + rank): byte for rank, byte in enumerate(others)}
    return {chr(byte): byte for byte in own} | shifted


def bytes_of(name: str, letters: dict[str, int]) -> bytes | None:
    """Bytes named by letters; None if there are none."""
    try:
        return bytes(letters[letter] for letter in name) or None
    except KeyError:  # no name of bytes: a token that nothing decodes
        return None
