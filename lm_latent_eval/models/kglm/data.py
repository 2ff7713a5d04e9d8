"""Text annotated with mentions of a knowledge graph's entities.

JSON lines, one text a line::

    {"id": "...", "tokens": ["Ada", "was", "born", "in", "London", "."],
     "mentions": [{"start": 0, "end": 1, "entity": "Ada", "form": "name"}, ...],
     "triples": [["Ada", "birthPlace", "London"], ...]}

The text is ``text`` if there is one, which has the tokens in their order, and else the
tokens joined by single spaces. ``start`` and ``end`` (exclusive) count tokens; ``form``
is name, description, pronoun or demonstrative. The union of the triples is the graph;
names and descriptions are the aliases. Articles of Linked WikiText-2
(``linked_wikitext.py``) are read as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.linked_wikitext import LinkedText
from lm_latent_eval.models.kglm.steps import Mention, Walks
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.text.strict_json import checked, strings
from lm_latent_eval.text.words import END, UNKNOWN, WordTokenizer, split

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
            if m["form"] not in FORMS:
                raise ValueError(f"form {m['form']!r}: expected {', '.join(FORMS)}")
            if not 0 <= m["start"] < m["end"] <= len(tokens):
                raise ValueError(
                    f"a mention of tokens {m['start']} to {m['end']} of {len(tokens)}"
                )
        text = checked(record.get("text", " ".join(tokens)), str, "text")
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
    return tuple((s, r, o) for s, r, o in triples)


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
            record = checked(strict_json.parse(line), dict, "a line")
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
    """Facts and names that no training text need mention."""

    triples: tuple[tuple[str, str, str], ...]
    aliases: dict[str, list[str]]

    @classmethod
    def read(cls, path: Path) -> Knowledge:
        """Read ``{"triples": [[s, r, o], ...], "aliases": {name: [form, ...]}}``.

        Raises:
            ValueError: If the file is not of this format.
        """
        try:
            content = checked(strict_json.read(path), dict, "the file")
            triples = _triples(content["triples"])
            names = checked(content["aliases"], dict, "aliases")
            aliases = {name: strings(forms, name) for name, forms in names.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise ValueError(
                f"{path} is not a knowledge graph ({err!r}); expected "
                '{"triples": [["s", "r", "o"], ...], "aliases": {"s": ["name", ...]}}'
            ) from err
        return cls(triples, aliases)


def surface_forms(
    texts: Iterable[AnnotatedText], knowledge: Knowledge | None = None
) -> dict[str, list[str]]:
    """Collect each entity's names and descriptions, the most common first.

    Names that come with the knowledge and occur in no text follow in their order.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for m in text.mentions:
            if m.form in NAMING:
                counts[m.entity][text.text[m.start : m.end]] += 1
    ranked = {
        entity: sorted(forms, key=lambda form: (-forms[form], form))
        for entity, forms in sorted(counts.items())
    }
    for entity, forms in (knowledge.aliases if knowledge else {}).items():
        seen = ranked.setdefault(entity, [])
        seen += [form for form in forms if form not in seen]
    return ranked


def build_vocabulary(
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None = None,
    *,
    min_count: int,
) -> tuple[WordTokenizer, int]:
    """Collect the words of a training text.

    Returns:
        The tokenizer, and how many word types of the text are unknown to it.
    """
    forms = surface_forms(texts, knowledge)
    tokenizer = WordTokenizer.train(
        (text.text for text in texts),
        min_count=min_count,
        copied=[form for names in forms.values() for form in names],
    )
    words = (word for text in texts for word in split(text.text))
    return tokenizer, tokenizer.count_unknown_types(words)


def build_graph(
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    tokenizer: WordTokenizer,
    *,
    max_aliases: int,
    max_alias_words: int,
) -> KnowledgeGraph:
    """Build the knowledge graph that annotated texts speak of."""
    # A word that is unknown cannot be copied: it could stand for any.
    aliases = {
        entity: [[i for i in tokenizer(form).ids if i != UNKNOWN] for form in forms]
        for entity, forms in surface_forms(texts, knowledge).items()
    }
    return KnowledgeGraph.build(
        chain(
            (triple for text in texts for triple in text.triples),
            knowledge.triples if knowledge else (),
        ),
        aliases,
        nodes=sorted({m.entity for text in texts for m in text.mentions}),
        max_aliases=max_aliases,
        max_alias_words=max_alias_words,
    )


class Annotator:
    """Turns annotated texts into word ids and the walk that is annotated."""

    def __init__(
        self, graph: KnowledgeGraph, tokenizer: WordTokenizer, cutoff: int
    ) -> None:
        self.graph, self.tokenizer, self.cutoff = graph, tokenizer, cutoff
        self.node = {name: i for i, name in enumerate(graph.node_names)}

    def __call__(self, text: AnnotatedText) -> tuple[list[int], list[int], list[int]]:
        """Return word ids (the end included), mention types and nodes, T each.

        A mention is derived if an edge leads to it from an entity of the last
        ``cutoff`` words, and new otherwise. Entities that the graph lacks are not
        mentioned.
        """
        words = self.tokenizer(text.text)
        mention, node = [int(Mention.NONE)], [NO_ENTITY]
        mention *= len(words.ids) + 1
        node *= len(words.ids) + 1
        spans = iter(text.mentions)
        span = next(spans, None)
        begun: Span | None = None
        for t, start in enumerate(words.starts):
            while span is not None and start >= span.end:
                span = next(spans, None)
            if span is None or start < span.start or span.entity not in self.node:
                continue
            node[t] = self.node[span.entity]
            if span is begun:
                mention[t] = int(Mention.CONTINUE)
                continue
            begun = span
            recent = node[max(0, t - self.cutoff) : t]
            derived = self._leads_to(recent, node[t])
            mention[t] = int(Mention.DERIVED if derived else Mention.NEW)
        return [*words.ids, END], mention, node

    def _leads_to(self, recent: list[int], node: int) -> bool:
        heads = torch.tensor(recent, dtype=torch.long).unique()
        start, end = self.graph.edges_between(heads, torch.full_like(heads, node))
        return bool((end > start).any())


def collate_walks(mention: Sequence[list[int]], node: Sequence[list[int]]) -> Walks:
    """Pad annotations of B texts, (B, 1, T)."""
    return Walks(_pad(mention)[:, None], _pad(node)[:, None])


def _pad(rows: Sequence[list[int]]) -> Tensor:
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values)
    return padded
