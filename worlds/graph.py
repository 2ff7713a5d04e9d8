"""The facts of the demonstration world."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from worlds.dice import Dice
from worlds.entities import GENRES, Entity, literal

Triple = tuple[str, str, str]

# Relation -> what the same fact is called when told from its object.
INVERSES = {
    "born_in": "birthplace_of",
    "lives_in": "home_of",
    "works_for": "employer_of",
    "spouse": "spouse",
    "teacher_of": "student_of",
    "studied_at": "school_of",
    "won": "won_by",
    "founded_by": "founder_of",
    "headquartered_in": "seat_of",
    "author_of": "authored_by",
    "set_in": "setting_of",
    "located_in": "contains",
    "capital": "capital_of",
    "lies_on": "flows_past",
}
DEAD_ENDS = ("founded_in", "released_in", "genre")  # told from their subject only
_FORWARD = {inverse: relation for relation, inverse in INVERSES.items()}


def forward(triple: Triple) -> Triple:
    """Return the fact in its one canonical form.

    Example:
        >>> forward(("town/melwick", "birthplace_of", "person/ilsa_vorsen"))
        ('person/ilsa_vorsen', 'born_in', 'town/melwick')
    """
    subject, relation, other = triple
    if relation == "spouse":
        return min(subject, other), relation, max(subject, other)
    if relation in _FORWARD:
        return other, _FORWARD[relation], subject
    return triple


def backward(triple: Triple) -> Triple | None:
    """Return a canonical fact told from its object, where that is possible."""
    subject, relation, other = triple
    if relation in DEAD_ENDS:
        return None
    return other, INVERSES[relation], subject


@dataclass
class Facts:
    """Canonical triples in the order of their invention."""

    triples: dict[Triple, None] = field(default_factory=dict)  # an ordered set
    years: set[int] = field(default_factory=set)

    def add(self, subject: Entity, relation: str, other: Entity) -> None:
        """Note a fact, once."""
        self.triples.setdefault(forward((subject.id, relation, other.id)))

    def date(self, subject: Entity, relation: str, year: int) -> None:
        """Note a fact whose object is a year."""
        self.years.add(year)
        self.add(subject, relation, literal("year", str(year)))


def relate(dice: Dice, entities: list[Entity]) -> Facts:
    """Invent facts about the entities: consistent in place, time and trade."""
    by_kind: dict[str, list[Entity]] = {}
    for entity in entities:
        by_kind.setdefault(entity.kind, []).append(entity)
    facts = Facts()
    _places(dice, by_kind, facts)
    homes = _private_lives(dice, by_kind, facts)
    _careers(dice, by_kind, facts)
    _companies(dice, by_kind, facts, homes)
    _works(dice, by_kind, facts)
    return facts


def _places(dice: Dice, by_kind: dict[str, list[Entity]], facts: Facts) -> None:
    regions, rivers, towns = by_kind["region"], by_kind["river"], by_kind["town"]
    for number, river in enumerate(rivers):
        facts.add(river, "located_in", regions[number % len(regions)])
    for number, town in enumerate(towns):
        here = number % len(regions)
        facts.add(town, "located_in", regions[here])
        if number < len(regions):
            facts.add(regions[here], "capital", town)
        if dice.chance(0.7):
            facts.add(town, "lies_on", dice.pick(rivers[here :: len(regions)]))
    for school, town in zip(by_kind["school"], dice.shuffled(towns), strict=False):
        facts.add(school, "located_in", town)
        facts.date(school, "founded_in", dice.between(1940, 1949))
    for prize in by_kind["prize"]:
        facts.date(prize, "founded_in", dice.between(1950, 1959))


def _private_lives(
    dice: Dice, by_kind: dict[str, list[Entity]], facts: Facts
) -> dict[str, Entity]:
    people, towns = by_kind["person"], by_kind["town"]
    homes = {person.id: dice.pick(towns) for person in people}
    for one, other in _couples(dice, people):
        facts.add(one, "spouse", other)
        homes[other.id] = homes[one.id]
    for person in people:
        facts.add(person, "born_in", dice.pick(towns))
        facts.add(person, "lives_in", homes[person.id])
    return homes


def _couples(dice: Dice, people: list[Entity]) -> Iterator[tuple[Entity, Entity]]:
    """Match each man, in random order, with a woman of about his age."""
    single = dice.shuffled(x for x in people if x.pronoun == "f")
    for man in dice.shuffled(x for x in people if x.pronoun == "m"):
        peers = [x for x in single if abs(x.born - man.born) <= 6]
        if peers and dice.chance(0.7):
            single.remove(peers[0])
            yield man, peers[0]


def _careers(dice: Dice, by_kind: dict[str, list[Entity]], facts: Facts) -> None:
    people = by_kind["person"]
    for person in people:
        if dice.chance(0.5):
            facts.add(person, "studied_at", dice.pick(by_kind["school"]))
        if dice.chance(0.3):
            facts.add(person, "won", dice.pick(by_kind["prize"]))
        if person.trade == "employee":
            facts.add(person, "works_for", dice.pick(by_kind["company"]))
        elders = [
            x
            for x in people
            if x.trade == person.trade and 14 <= person.born - x.born <= 35
        ]
        if elders and dice.chance(0.6):
            facts.add(dice.pick(elders), "teacher_of", person)


def _companies(
    dice: Dice, by_kind: dict[str, list[Entity]], facts: Facts, homes: dict[str, Entity]
) -> None:
    founders = [x for x in by_kind["person"] if x.trade == "founder"]
    for number, company in enumerate(by_kind["company"]):
        founder = founders[number % len(founders)]
        facts.add(company, "founded_by", founder)
        facts.date(company, "founded_in", founder.born + dice.between(24, 36))
        near = dice.chance(0.5)
        town = homes[founder.id] if near else dice.pick(by_kind["town"])
        facts.add(company, "headquartered_in", town)


def _works(dice: Dice, by_kind: dict[str, list[Entity]], facts: Facts) -> None:
    genres = {x.names[0]: x for x in by_kind["genre"]}
    for kind in GENRES:
        authors = [x for x in by_kind["person"] if x.trade == kind]
        for number, work in enumerate(by_kind[kind]):
            author = authors[number % len(authors)]
            facts.add(author, "author_of", work)
            facts.date(work, "released_in", author.born + dice.between(24, 40))
            facts.add(work, "genre", genres[dice.pick(GENRES[kind])])
            if kind != "song":
                facts.add(work, "set_in", dice.pick(by_kind["town"]))
