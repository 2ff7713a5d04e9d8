"""A text with its mentions and facts, as plain data."""

import re
from typing import TypedDict

# Numbers, words (with inner apostrophes, hyphens and the like), single marks.
TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|\w+(?:['\u2019.&/-]\w+)*|[^\w\s]")
_CLINGING = frozenset(".,;:!?)")


class Mention(TypedDict):
    """Tokens start to end (exclusive) stand for the entity.

    The form is "name", "description" or "pronoun".
    """

    start: int
    end: int
    entity: str
    form: str


class Document(TypedDict):
    """One paragraph; mentions in order and apart, triples as the text states them."""

    id: str
    tokens: list[str]
    mentions: list[Mention]
    triples: list[list[str]]


def tokenize(text: str) -> list[str]:
    """Split a text into words, numbers and punctuation marks.

    Example:
        >>> tokenize("In 1987, Ilsa Vorsen moved.")
        ['In', '1987', ',', 'Ilsa', 'Vorsen', 'moved', '.']
    """
    return TOKEN.findall(text)


def raw_text(document: Document) -> str:
    """Return the text as one would write it; ``tokenize`` gives its tokens back."""
    text = ""
    for token in document["tokens"]:
        text += token if not text or token in _CLINGING else f" {token}"
    return text
