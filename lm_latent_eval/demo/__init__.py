"""The demonstration corpus: texts about a fictional country, and a trained KGLM.

Some three hundred people, places, companies and works, the facts that connect them,
and short texts that go from one to the next with every mention marked. All of it is
made up, so there is no download and no model has seen it before. The folder ``worlds``
of the sources draws it.

Example:
    >>> from lm_latent_eval.demo import documents
    >>> document = documents("dev")[0]
    >>> document["tokens"][:4], document["mentions"][0]["entity"]
    (['Pascoe', 'University', 'is', 'a'], 'school/pascoe_university')

``python -m lm_latent_eval.demo --out DIR`` writes the texts as JSON lines, and
``--checkpoint`` prints where the model is that was trained on them.
"""

import bz2
import json
import re
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""A small KGLM trained on the world's training texts."""
DATA = Path(__file__).parent / "data"
Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
# Numbers, words (with inner apostrophes, hyphens and the like), single marks.
TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|\w+(?:['\u2019.&/-]\w+)*|[^\w\s]")


class Mention(TypedDict):
    """Tokens start to end (exclusive) that mention an entity.

    The form is "name", "description" or "pronoun".
    """

    start: int
    end: int
    entity: str
    form: str


class Document(TypedDict):
    """One paragraph; mentions in order and apart, triples as the text states them."""

    text: str
    id: str
    tokens: list[str]
    mentions: list[Mention]
    triples: list[list[str]]


class Graph(TypedDict):
    """Graph of facts, each once, and the names of each entity, the usual first."""

    triples: list[list[str]]
    aliases: dict[str, list[str]]


class FactQuestion(TypedDict):
    """Multiple-choice continuation of a context; ``answer`` is the right index."""

    context: str
    choices: list[str]
    answer: int


def documents(split: Split) -> list[Document]:
    """Texts of a split, with their mentions and facts.

    Raises:
        ValueError: If the split is unknown.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {list(SPLITS)}")
    return [
        Document(
            text=record["text"],
            id=record["id"],
            tokens=tokenize(record["text"]),
            mentions=record["mentions"],
            triples=record["triples"],
        )
        for record in map(json.loads, _lines(f"{split}.jsonl"))
    ]


def texts(split: Split) -> list[str]:
    """Texts of a split, as strings."""
    return [document["text"] for document in documents(split)]


def other_texts() -> list[str]:
    """Texts about another world, in the same style."""
    return [json.loads(line) for line in _lines("other_texts.jsonl")]


def questions() -> list[FactQuestion]:
    """Questions about facts that the training texts never state.

    They are worded like those texts. A model that reads the graph can know the answers.
    """
    return [json.loads(line) for line in _lines("questions.jsonl")]


def knowledge() -> Graph:
    """Graph that the texts are about."""
    graph: Graph = json.loads(_unpacked("knowledge.json"))
    return graph


def tokenize(text: str) -> list[str]:
    """Split a text into words, numbers and punctuation marks.

    Example:
        >>> tokenize("In 1987, Ilsa Vorsen moved.")
        ['In', '1987', ',', 'Ilsa', 'Vorsen', 'moved', '.']
    """
    return TOKEN.findall(text)


def _lines(name: str) -> list[str]:
    return _unpacked(name).splitlines()


@cache
def _unpacked(name: str) -> str:
    return bz2.decompress((DATA / f"{name}.bz2").read_bytes()).decode()
