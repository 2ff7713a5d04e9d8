"""Annotated texts: JSON lines with mentions of entities, or Linked WikiText-2.

The format of new models has one text a line::

    {"id": "...", "tokens": ["Ada", "was", "born", "in", "London", "."],
     "mentions": [{"start": 0, "end": 1, "entity": "Ada", "form": "name"}, ...],
     "triples": [["Ada", "birthPlace", "London"], ...]}

The text is ``text`` if there is one, which has the tokens in their order, and else the
tokens joined by single spaces. ``start`` and ``end`` (exclusive) count tokens; ``form``
is name, description, pronoun or demonstrative. The union of the triples is the graph;
names and descriptions are the aliases.

Linked WikiText-2 has one article a line, whose mentions are linked to Wikidata::

    {"title": "...", "tokens": ["@@START@@", "Ada", "met", "Babbage", ".", "@@END@@"],
     "annotations": [{"source": "WIKI", "id": "Q7259", "span": [1, 2],
                      "relation": ["@@NEW@@"], "parent_id": ["Q7259"]}, ...]}

``@@END@@`` ends every line of the article. A span counts tokens, its end exclusive.
The mention is new if its relation is ``@@NEW@@``; else it is derived, from every parent
by the relation beside it: ``R:P31`` is the inverse of ``P31``, ``@@REFLEXIVE@@`` the
entity itself. Names that begin with ``T`` or ``V`` are dates and quantities. Where
mentions overlap, the later one has the tokens, and what is left of the earlier one on
either side are mentions by themselves. ``LinkedText.as_record`` writes an article in
the format of new models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from lm_latent_eval.text.corpora import START_MARK, unmarked
from lm_latent_eval.text.files import numbered_lines, read_json
from lm_latent_eval.text.words import encodable
from lm_latent_eval.values import checked, parse, strings

FORMS = ("name", "description", "pronoun", "demonstrative")

NAMING = FORMS[:2]

_OF_A_MENTION = {"start": int, "end": int, "entity": str, "form": str}


@dataclass(frozen=True)
class Span:
    """A mention: characters ``start`` .. ``end - 1`` name the entity."""

    start: int
    end: int
    entity: str
    form: str


@dataclass(frozen=True)
class AnnotatedText:
    """A text, its mentions from left to right and the facts that it states."""

    id: str
    text: str
    mentions: tuple[Span, ...]
    triples: tuple[tuple[str, str, str], ...]

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> AnnotatedText:
        """Read one record of the format above."""
        tokens = strings(record["tokens"], "tokens")
        marked = checked(record["mentions"], list, "mentions")
        for m in marked:
            for name, kind in _OF_A_MENTION.items():
                checked(checked(m, dict, "a mention")[name], kind, name)
            encodable(m["entity"])
            if m["form"] not in FORMS:
                raise ValueError(f"form {m['form']!r}: expected {', '.join(FORMS)}")
            if not 0 <= m["start"] < m["end"] <= len(tokens):
                raise ValueError(
                    f"a mention of tokens {m['start']} to {m['end']} of {len(tokens)}"
                )
        text = encodable(checked(record.get("text", " ".join(tokens)), str, "text"))
        places = list(_places(tokens, text))
        mentions = tuple(
            Span(places[m["start"]][0], places[m["end"] - 1][1], m["entity"], m["form"])
            for m in sorted(marked, key=lambda m: m["start"])
        )
        for before, after in pairwise(mentions):
            if after.start < before.end:
                raise ValueError(f"mentions overlap at character {after.start}")
        return cls(record.get("id", ""), text, mentions, _triples(record["triples"]))


def _triples(value: Any) -> tuple[tuple[str, str, str], ...]:
    triples = (
        strings(triple, "a triple") for triple in checked(value, list, "triples")
    )
    found = tuple((s, r, o) for s, r, o in triples)
    for name in chain.from_iterable(found):
        encodable(name)
    return found


def _places(tokens: Sequence[str], text: str) -> Iterator[tuple[int, int]]:
    """Yield where each token starts and ends in its text."""
    end = 0
    for token in tokens:
        start = text.find(token, end)
        if start < 0:
            raise ValueError(f"the text has no {token!r} after character {end}")
        end = start + len(token)
        yield start, end


def read_annotated(path: Path) -> list[AnnotatedText]:
    """Read a file of annotated texts.

    Raises:
        ValueError: If a line is not of the format; it is named.
    """
    texts = []
    for number, line in numbered_lines(path):
        try:
            record = checked(parse(line), dict, "a line")
            if "annotations" in record:
                record = LinkedText.from_json(record).as_record()
            texts.append(AnnotatedText.from_json(record))
        except (
            *(ValueError, KeyError, IndexError, TypeError),
            RecursionError,  # nested without end
        ) as err:
            raise ValueError(
                f"{path}, line {number}: not an annotated text ({err!r}); expected "
                '{"tokens": [...], "mentions": [...], "triples": [...]}, or '
                '"annotations" as in Linked WikiText-2'
            ) from err
    if not texts:
        raise ValueError(f"{path} has no texts")
    return texts


@dataclass(frozen=True)
class Knowledge:
    """Facts and names beyond those of the training texts."""

    triples: tuple[tuple[str, str, str], ...]
    aliases: dict[str, list[str]]

    @classmethod
    def read(cls, path: Path) -> Knowledge:
        """Read ``{"triples": [[s, r, o], ...], "aliases": {name: [form, ...]}}``.

        Raises:
            ValueError: If the file is not of this format.
        """
        try:
            content = checked(read_json(path), dict, "the file")
            triples = _triples(content["triples"])
            names = checked(content["aliases"], dict, "aliases")
            for name in names:
                encodable(name)
            aliases = {name: strings(forms, name) for name, forms in names.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise ValueError(
                f"{path} is not a knowledge graph ({err!r}); expected "
                '{"triples": [["s", "r", "o"], ...], "aliases": {"s": ["name", ...]}}'
            ) from err
        return cls(triples, aliases)


# -- Linked WikiText-2 --------------------------------------------------------------

_NEW, _REFLEXIVE, _INVERSE = "@@NEW@@", "@@REFLEXIVE@@", "R:"


@dataclass(frozen=True)
class Annotation:
    """A mention of an entity."""

    start: int
    """Index of the mention's first token."""
    end: int
    """The token after its last one."""
    entity: str
    source: str
    """Source of the annotation: WIKI, KG or COREF."""
    edges: tuple[tuple[str, str], ...]
    """(relation, parent); none if the entity is new."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Annotation:
        """Read one annotation."""
        start, end = (checked(n, int, "span") for n in record["span"])
        relations = strings(record["relation"], "relation")
        parents = strings(record["parent_id"], "parent_id")
        edges = (
            () if relations == [_NEW] else tuple(zip(relations, parents, strict=True))
        )
        source = checked(record.get("source", ""), str, "source")
        return cls(start, end, checked(record["id"], str, "id"), source, edges)


@dataclass(frozen=True)
class LinkedText:
    """An article with its mentions."""

    title: str
    tokens: tuple[str, ...]
    annotations: tuple[Annotation, ...]

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> LinkedText:
        """Read one article.

        Raises:
            ValueError, KeyError, TypeError: If it is not of the format.
        """
        tokens = tuple(strings(record["tokens"], "tokens"))
        if tokens[:1] != (START_MARK,):
            raise ValueError(f"the first token is not {START_MARK}")
        found = checked(record["annotations"], list, "annotations")
        annotations = tuple(map(Annotation.from_json, found))
        for a in annotations:
            if not 0 < a.start < a.end <= len(tokens):
                raise ValueError(
                    f"a mention of tokens {a.start} to {a.end} of {len(tokens)}"
                )
        return cls(str(record.get("title", "")), tokens, annotations)

    def mentions(self) -> list[Annotation]:
        """Return the mentions from left to right, no token in two of them."""
        owner: list[Annotation | None] = [None] * len(self.tokens)
        for a in self.annotations:
            owner[a.start : a.end] = [a] * (a.end - a.start)
        pieces, start = [], 0
        for _, run in groupby(owner, key=id):
            same = list(run)
            if same[0] is not None:
                pieces.append(replace(same[0], start=start, end=start + len(same)))
            start += len(same)
        return pieces

    def as_record(self) -> dict[str, Any]:
        r"""Write the article as a record of the format of new models.

        Line ends become ``\n``. Facts are the relations of derived mentions, read
        forwards. Mentions that a coreference system found name nothing reliably, so
        they teach no alias. A date or quantity is an entity like any other.
        """
        tokens = unmarked(list(self.tokens))
        mentions = [
            {
                "start": m.start - 1,
                "end": min(m.end - 1, len(tokens)),
                "entity": m.entity,
                "form": "pronoun" if m.source == "COREF" else "name",
            }
            for m in self.mentions()
            if m.start - 1 < len(tokens)
        ]
        triples = {
            _forwards(parent, relation, a.entity)
            for a in self.annotations
            for relation, parent in a.edges
            if relation != _REFLEXIVE
        }
        return {
            "id": self.title,
            "tokens": tokens,
            "mentions": mentions,
            "triples": sorted(map(list, triples)),
        }


def _forwards(head: str, relation: str, tail: str) -> tuple[str, str, str]:
    if relation.startswith(_INVERSE):
        return (tail, relation.removeprefix(_INVERSE), head)
    return (head, relation, tail)
