"""Units of the noise channel: words at white space, or tokens of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

_WORD = re.compile(r"(\S+)")


class Units(Protocol[T]):
    """A way to cut strings, and to write other units in the same places."""

    def cut(self, text: str) -> list[T]:
        """Return the units of a string."""
        ...

    def paste(self, units: Sequence[T], text: str) -> str:
        """Write as many units as a string has in the place of its own."""
        ...


class WhiteSpaceWords:
    """Words are what stands between white space, which stays as it is.

    Example:
        >>> words = WhiteSpaceWords()
        >>> words.cut(" a  plum. ")
        ['a', 'plum.']
        >>> words.paste(["two", "rivers"], " a  plum. ")
        ' two  rivers '
    """

    name = "words at white space"

    def cut(self, text: str) -> list[str]:
        """Return the words of a string."""
        return _WORD.findall(text)

    def paste(self, units: Sequence[str], text: str) -> str:
        """Write as many words as a string has, with its own white space.

        Raises:
            ValueError: If there are more or fewer.
        """
        gaps = _WORD.split(text)[::2]
        if len(units) != len(gaps) - 1:
            raise ValueError(
                f"{text[:40]!r} has {len(gaps) - 1} words; got {len(units)} to put in "
                "their places"
            )
        pieces = [piece for pair in zip(gaps, units, strict=False) for piece in pair]
        return "".join([*pieces, gaps[-1]])


class Tokens:
    """Token ids of a Hugging Face tokenizer, without the special ones.

    As many tokens leave the channel as entered it, but what they spell may be cut
    otherwise when it is read again, and bytes that are no character become U+FFFD: to
    score a distorted string is not to score these ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @property
    def name(self) -> str:
        return f"tokens of {self.tokenizer.name_or_path}"

    @property
    def vocabulary(self) -> list[int]:
        """Every id but the special ones."""
        ids = set(self.tokenizer.get_vocab().values())
        return sorted(ids - set(self.tokenizer.all_special_ids))

    def cut(self, text: str) -> list[int]:
        """Return the ids of a string.

        Raises:
            ValueError: If they do not spell that string: it would be distorted by the
                tokenizer as well.
        """
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        spelled = self.paste(ids, text)
        if spelled != text:
            raise ValueError(
                f"{self.name} turn {text[:40]!r} into {spelled[:40]!r}: distort words "
                "at white space instead, or take a tokenizer that loses nothing"
            )
        return ids

    def paste(self, units: Sequence[int], text: str) -> str:
        """Write token ids as a string; nothing is left of the one before."""
        return str(
            self.tokenizer.decode(list(units), clean_up_tokenization_spaces=False)
        )
