"""The demonstration world: a small graph, its names, and texts about it.

Two things are kept out of the training texts, so that knowing the graph can help:

- *reserved* entities, which only the development and test texts mention;
- *withheld* facts: all those of reserved entities, and a share of the others. The
  development and test texts state them, and ``facts.py`` asks for them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from lm_latent_eval.demo import SPLITS, Document, Split
from worlds.dice import Dice
from worlds.entities import Entity, invent, literal
from worlds.graph import Triple, backward, forward, relate
from worlds.writer import Paragraph, write

SIZES: dict[Split, int] = {"train": 3000, "dev": 200, "test": 200}
RESERVED = {
    "person": 14,
    "town": 5,
    "company": 4,
    "book": 3,
    "film": 2,
    "song": 2,
    "river": 1,
    "school": 1,
    "prize": 1,
}
WITHHELD_SHARE = 0.15  # of the facts between entities that are not reserved
CLINGING = frozenset(".,;:!?)")
LENGTHS = (2, 3, 3, 4, 4, 4, 5, 5, 5)  # sentences
MINIMUM_SENTENCES = 2
MINIMUM_MENTIONS = 3
RESERVED_START = 0.35  # share of dev and test texts that begin with a reserved entity


@dataclass(frozen=True)
class World:
    """A fictional world and its corpus; equal seeds give equal worlds.

    Attributes:
        seed: What it was generated from.
        entities: Ids such as ``person/ilsa_vorsen``.
        aliases: Surface strings of each entity, the most usual first.
        triples: Every fact, told from each end that has a relation for it.
        reserved: Entities that the training texts never mention.
        withheld: Facts, in canonical form, that the training texts never state.
    """

    seed: int
    entities: list[str]
    aliases: dict[str, list[str]]
    triples: list[Triple]
    reserved: list[str]
    withheld: list[Triple]
    cast: Mapping[str, Entity]

    def documents(self, split: Split) -> list[Document]:
        """Return the texts of a split; no text occurs in two splits, or twice."""
        return self._corpus[split]

    @cached_property
    def _corpus(self) -> dict[Split, list[Document]]:
        taken: set[str] = set()
        return {split: _write_split(self, split, taken) for split in SPLITS}


def generate(seed: int = 0) -> World:
    """Return the world of this seed, the same on every machine."""
    dice = Dice(f"{seed}/world")
    entities = invent(dice)
    facts = relate(dice, entities)
    entities += [literal("year", str(year)) for year in sorted(facts.years)]
    cast = {x.id: x for x in entities}
    reserved = _choose_reserved(dice, entities)
    shy = set(reserved)
    withheld = [
        x
        for x in facts.triples
        if dice.chance(WITHHELD_SHARE) or x[0] in shy or x[2] in shy
    ]
    both_ways = ((x, backward(x)) for x in facts.triples)
    return World(
        seed=seed,
        entities=list(cast),
        aliases={x.id: x.aliases for x in entities},
        triples=[x for pair in both_ways for x in pair if x is not None],
        reserved=reserved,
        withheld=withheld,
        cast=cast,
    )


def _choose_reserved(dice: Dice, entities: Iterable[Entity]) -> list[str]:
    chosen: list[str] = []
    left = dict(RESERVED)
    for entity in dice.shuffled(entities):
        if left.get(entity.kind, 0):
            left[entity.kind] -= 1
            chosen.append(entity.id)
    return sorted(chosen)


def _write_split(world: World, split: Split, taken: set[str]) -> list[Document]:
    """Write a split; ``taken`` has the texts to avoid, and is added to."""
    dice = Dice(f"{world.seed}/{split}")
    hidden = set(world.withheld) if split == "train" else set()
    edges: dict[str, dict[str, list[str]]] = {}
    for triple in world.triples:
        if forward(triple) not in hidden:
            subject, relation, other = triple
            edges.setdefault(subject, {}).setdefault(relation, []).append(other)
    starts = [world.cast[x] for x in edges]
    fame = [float(len(edges[x.id])) for x in starts]
    shy = [world.cast[x] for x in world.reserved if x in edges]
    documents: list[Document] = []
    while len(documents) < SIZES[split]:
        if split != "train" and dice.chance(RESERVED_START):
            start = dice.pick(shy)
        else:
            start = dice.weighted(starts, fame)
        text = write(dice, world.cast, edges, start, dice.pick(LENGTHS))
        raw = raw_text(text.tokens)
        long_enough = (
            text.num_sentences >= MINIMUM_SENTENCES
            and len(text.mentions) >= MINIMUM_MENTIONS
        )
        if long_enough and raw not in taken:
            taken.add(raw)
            name = f"{split}-{len(documents):04d}"
            documents.append(_document(name, raw, text))
    return documents


def raw_text(tokens: Iterable[str]) -> str:
    """Return a text as one would write it; ``tokenize`` gives its tokens back."""
    text = ""
    for token in tokens:
        text += token if not text or token in CLINGING else f" {token}"
    return text


def _document(name: str, raw: str, text: Paragraph) -> Document:
    return Document(
        text=raw,
        id=name,
        tokens=text.tokens,
        mentions=text.mentions,
        triples=[list(x) for x in text.told],
    )
