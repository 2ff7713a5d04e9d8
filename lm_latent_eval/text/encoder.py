"""Encoders of strings to units and back: words, bytes or subwords.

Words with reserved ids, unknown ones among them, are in ``reading``; they are what
checkpoints have unless their model brings an encoder of its own (``OwnEncoder``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from tokenizers import Tokenizer

from lm_latent_eval.files import one_line
from lm_latent_eval.text.reading import Reading
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import encodable


class Encoder(Protocol):
    """What scoring and decoding ask of strings and units."""

    @property
    def units(self) -> str:
        """What they are called."""
        ...

    @property
    def policy(self) -> UnknownWords:
        """What an unknown unit costs; ``spelled`` where all of the string is scored."""
        ...

    @property
    def start(self) -> int:
        """The unit that stands before every text."""
        ...

    @property
    def end(self) -> int:
        """The unit that ends one."""
        ...

    @property
    def unknown(self) -> int | None:
        """One that stands for many strings: it is neither greedy nor written."""
        ...

    def __call__(self, text: str, /) -> Reading:
        """Cut a string: units, where each ends, and what the string costs beside them.

        Raises:
            ValueError: If it has no units that the model knows.
        """
        ...

    def price(self, ids: Sequence[int], /) -> list[float]:
        """Return what units cost beside their probability, nats."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """Write units as a string; start and end are nothing."""
        ...


@runtime_checkable
class OwnEncoder(Protocol):
    """A model whose units are no words: its directory holds what it encodes with."""

    def load_encoder(self, directory: Path) -> Encoder:
        """Read it; a ``ValueError`` says what is wrong."""
        ...


@dataclass(frozen=True)
class ByteEncoder:
    """UTF-8: nothing is unknown, and nothing costs anything beside the bytes.

    Example:
        >>> encoder = ByteEncoder()
        >>> encoder("aé").ids, encoder("aé").ends
        ([97, 195, 169], [1, 2, 2])
        >>> encoder.decode([97, 195, 169, encoder.end])
        'aé'
    """

    units = "bytes"
    policy = UnknownWords.SPELLED
    start, end = 256, 257
    unknown: ClassVar[None] = None

    def __call__(self, text: str) -> Reading:
        """Cut a string; each byte of a character ends where that does."""
        text = encodable(text)
        sizes = [len(character.encode()) for character in text]
        ends = [n for n, size in enumerate(sizes, start=1) for _ in range(size)]
        return Reading.of_all(list(text.encode()), ends)

    def price(self, ids: Sequence[int]) -> list[float]:
        """Return zeros."""
        return [0.0] * len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Write bytes as a string, replacing what is no UTF-8."""
        return bytes(i for i in ids if i < self.start).decode(errors="replace")


@dataclass(frozen=True)
class SubwordEncoder:
    """The tokens of a Hugging Face tokenizer that knows every string.

    A string has one probability here, that of its tokens as the tokenizer cuts it;
    other cuts of the same string are left out, so the model is sub-normalised.
    """

    tokenizer: Tokenizer
    start: int
    end: int
    units = "subwords"
    policy = UnknownWords.SPELLED

    @classmethod
    def load(cls, path: Path, *, start: str, end: str) -> SubwordEncoder:
        """Read a ``tokenizer.json``.

        Args:
            path: The file.
            start: The token that stands before every text.
            end: The token that ends one.

        Raises:
            ValueError: If it is missing, damaged or lacks one of them.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as err:  # the library raises bare exceptions
            raise ValueError(
                f"{path} is not a readable tokenizer ({one_line(err)})"
            ) from err

        def numbered(token: str) -> int:
            index = tokenizer.token_to_id(token)
            if index is None:
                raise ValueError(f"{path} has no token {token!r}")
            return index

        return cls(tokenizer, numbered(start), numbered(end))

    @property
    def unknown(self) -> int | None:
        """Its unknown token, if it has one."""
        name = getattr(self.tokenizer.model, "unk_token", None)
        return None if name is None else self.tokenizer.token_to_id(name)

    def __call__(self, text: str) -> Reading:
        """Cut a string.

        Raises:
            ValueError: If a piece of it is unknown.
        """
        encoding = self.tokenizer.encode(encodable(text), add_special_tokens=False)
        if self.unknown is not None and self.unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unknown)]
            raise ValueError(
                f"the tokenizer has no tokens for {text[start:end]!r}: the text has no "
                "probability as a string"
            )
        # Tokens that share a character end in order.
        ends = accumulate((end for _, end in encoding.offsets), max)
        return Reading.of_all(encoding.ids, list(ends))

    def price(self, ids: Sequence[int]) -> list[float]:
        """Return zeros."""
        return [0.0] * len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Write tokens as a string."""
        kept = [i for i in ids if i not in (self.start, self.end)]
        return str(self.tokenizer.decode(kept))
