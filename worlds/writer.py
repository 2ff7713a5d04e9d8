"""Paragraphs that walk through the graph, one sentence after another.

Each sentence is about something that the text has just mentioned, and states one or
two facts that it has not stated yet. How an entity is referred to depends on what the
reader already knows: a full name first, then pronouns, descriptions and short names
wherever they are unambiguous.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lm_latent_eval.demo import Mention, tokenize
from worlds.dice import Dice
from worlds.entities import PRONOUNS, Entity, capitalised
from worlds.fillers import ASIDES, BANKS, CONNECTIVES
from worlds.graph import Triple, forward
from worlds.templates import CONTINUATIONS, REMARKS, SENTENCES, SLOT

Edges = Mapping[str, Mapping[str, Sequence[str]]]  # subject -> relation -> objects

CASES = {"": "he", "he": "he", "him": "him", "his": "his"}  # slot form -> pronoun


@dataclass(frozen=True)
class Plan:
    """What the next sentence says: a template key and who fills its slots."""

    key: str
    cast: Mapping[str, Entity]
    facts: tuple[Triple, ...]


@dataclass
class Sentence:
    """Tokens and mentions, with positions counted from the sentence's start."""

    subject: Entity | None = None
    lead: Entity | None = None  # what the sentence opens with
    tokens: list[str] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)

    def refer(self, entity: Entity, surface: str, form: str) -> None:
        """Append a mention."""
        start = len(self.tokens)
        self.tokens += tokenize(surface if start else capitalised(surface))
        end = len(self.tokens)
        self.mentions.append(Mention(start=start, end=end, entity=entity.id, form=form))


class Paragraph:
    """A text in the making."""

    def __init__(self, dice: Dice, entities: Mapping[str, Entity]) -> None:
        """Start empty; ``entities`` finds an entity by its id."""
        self._dice = dice
        self._entities = entities
        self._last = Sentence()  # the last one with a mention
        self.interrupted = False  # by a sentence without mentions
        self._spent: set[str] = set()  # templates
        self.num_sentences = 0
        self.tokens: list[str] = []
        self.mentions: list[Mention] = []
        self.told: dict[Triple, None] = {}  # an ordered set

    @property
    def recent(self) -> list[Entity]:
        """The last sentence's entities, in order of mention, each once."""
        ids = dict.fromkeys(x["entity"] for x in self._last.mentions)
        return [self._entities[x] for x in ids]

    @property
    def topic(self) -> Entity | None:
        """The subject of the last sentence that had one."""
        return self._last.subject

    def add(
        self,
        templates: Sequence[str],
        cast: Mapping[str, Entity],
        facts: Sequence[Triple] = (),
    ) -> bool:
        """Add a sentence from one of the templates, if one of them fits here."""
        fresh = [x for x in templates if x not in self._spent]
        for template in self._dice.shuffled(fresh):
            sentence = self._realise(template, cast)
            if sentence is not None:
                self._spent.add(template)
                self._append(sentence)
                self.told.update(dict.fromkeys(facts))
                return True
        return False

    def _append(self, sentence: Sentence) -> None:
        offset = len(self.tokens)
        self.num_sentences += 1
        self.tokens += sentence.tokens
        self.mentions += [
            Mention(
                start=x["start"] + offset,
                end=x["end"] + offset,
                entity=x["entity"],
                form=x["form"],
            )
            for x in sentence.mentions
        ]
        self.interrupted = not sentence.mentions
        if sentence.mentions:
            self._last = sentence

    def _realise(self, template: str, cast: Mapping[str, Entity]) -> Sentence | None:
        """Fill a template; None if it asks for a pronoun that would be unclear."""
        sentence = Sentence(subject=cast.get("s"))
        if self.tokens and template.startswith("{s") and self._dice.chance(0.12):
            opening = self._dice.pick(CONNECTIVES)
            comma = [] if opening.endswith("that") else [","]
            sentence.tokens += [*opening.split(), *comma]
        chosen: set[str] = set()
        position = 0
        for slot in SLOT.finditer(template):
            sentence.tokens += tokenize(template[position : slot.start()])
            position = slot.end()
            if bank := slot["bank"]:
                word = self._word(bank, cast, chosen)
                chosen.add(word)
                sentence.tokens += word.split()
                continue
            mention = self._mention(cast[slot["who"]], slot, sentence)
            if mention is None:
                return None
            sentence.refer(cast[slot["who"]], *mention)
            if slot.start() == 0:
                sentence.lead = cast[slot["who"]]
        sentence.tokens += tokenize(template[position:])
        _settle_articles(sentence)
        sentence.tokens[0] = capitalised(sentence.tokens[0])
        return sentence

    def _word(self, bank: str, cast: Mapping[str, Entity], chosen: set[str]) -> str:
        """Return a word of the bank that its sentence does not have yet."""
        if bank == "kind":
            return cast["s"].noun
        return self._dice.pick([x for x in BANKS[bank] if x not in chosen])

    def _mention(
        self, entity: Entity, slot: re.Match[str], sentence: Sentence
    ) -> tuple[str, str] | None:
        """Return a surface and its form, or None where no form would do."""
        wanted = slot["form"] or ""
        clear = self._pronoun_is_clear(entity, sentence)
        if wanted in ("he", "his"):
            pronoun = PRONOUNS[entity.pronoun][wanted]
            return (pronoun, "pronoun") if clear else None
        case = CASES.get(wanted) if slot["who"] == "s" else None
        if case and clear and self._dice.chance(0.6):
            return PRONOUNS[entity.pronoun][case], "pronoun"
        descriptions = self._descriptions(entity)
        likely = 0.3 if len(entity.names) > 1 else 0.6
        if wanted != "name" and descriptions and self._dice.chance(likely):
            return self._dice.pick(descriptions), "description"
        return self._name(entity), "name"

    def _name(self, entity: Entity) -> str:
        """Return a full name at first, then mostly a short one."""
        full, *others = entity.names
        known = any(x["entity"] == entity.id for x in self.mentions)
        if not others or not self._dice.chance(0.88 if known else 0.06):
            return full
        titled = [x for x in others if " " in x]
        if not known and entity.kind == "person":
            return self._dice.pick(titled or [full])
        return self._dice.weighted(others, [2.0] + [1.0] * (len(others) - 1))

    def _descriptions(self, entity: Entity) -> list[str]:
        """Return the descriptions that fit nothing else in the text so far.

        What a person does need not have been said, so nobody else may be near.
        """
        near = [x for x in self.recent if x.kind == entity.kind]
        if entity not in near or (entity.kind == "person" and len(near) > 1):
            return []
        mentioned = {x["entity"] for x in self.mentions} - {entity.id}
        taken = {d for x in mentioned for d in self._entities[x].descriptions}
        return [x for x in entity.descriptions if x not in taken]

    def _pronoun_is_clear(self, entity: Entity, sentence: Sentence) -> bool:
        """Whether "she", "he" or "it" can only mean the entity.

        Nothing else with its pronoun may be in this sentence, or, while this one has
        nothing of the sort, in the last. "It" is easily taken for something that is
        no entity: it must have opened the last sentence (then other things may be
        there) or closed it.
        """
        here = [self._entities[x["entity"]] for x in sentence.mentions]
        alike_here = [x for x in here if x.pronoun == entity.pronoun]
        nearest = sentence if alike_here else self._last
        alike = alike_here or [x for x in self.recent if x.pronoun == entity.pronoun]
        if not entity.pronoun or entity not in alike:
            return False
        alone = all(x == entity for x in alike)
        if entity.pronoun != "n" or nearest is sentence:
            return alone or (nearest.lead == entity and entity.pronoun == "n")
        final = self._last.mentions[-1]
        closes = alone and final["entity"] == entity.id
        closes = closes and final["end"] == len(self._last.tokens) - 1
        return not self.interrupted and (closes or nearest.lead == entity)


def _settle_articles(sentence: Sentence) -> None:
    """Make "a" into "an" before a vowel, outside names."""
    named = {
        position
        for mention in sentence.mentions
        if mention["form"] == "name"
        for position in range(mention["start"], mention["end"])
    }
    for position, word in enumerate(sentence.tokens[:-1]):
        following = sentence.tokens[position + 1].lower()
        vowel = following[0] in "aeiou" and not following.startswith(("uni", "one"))
        if word in ("a", "A") and position not in named and vowel:
            sentence.tokens[position] = word + "n"


def write(
    dice: Dice,
    entities: Mapping[str, Entity],
    edges: Edges,
    start: Entity,
    num_sentences: int,
) -> Paragraph:
    """Write about ``start`` and what is near it in the graph.

    Args:
        dice: Where the choices come from.
        entities: Everything, by id.
        edges: The facts that may be told, in both directions.
        start: What the first sentence is about.
        num_sentences: How many; fewer where nothing is left to say.
    """
    text = Paragraph(dice, entities)
    for number in range(num_sentences):
        aside = number > 0 and not text.interrupted and dice.chance(0.09)
        if aside and text.add(ASIDES, {}):
            continue
        for subject in _subjects(dice, text, start):
            remarks = REMARKS.get(subject.kind, ()) if number else ()
            if dice.chance(0.12) and text.add(remarks, {"s": subject}):
                break
            plans = _plans(dice, entities, edges, subject, text.told)
            if any(text.add(SENTENCES[x.key], x.cast, x.facts) for x in plans):
                break
    return text


def _subjects(dice: Dice, text: Paragraph, start: Entity) -> list[Entity]:
    """Return what the next sentence may be about, the first choice first."""
    if not text.tokens:
        return [start]
    others = dice.shuffled(x for x in text.recent if x != text.topic)
    same = [text.topic] if text.topic else []
    order = same + others if dice.chance(0.5) else others + same
    return list({x.id: x for x in [*order, start]}.values())


def _plans(
    dice: Dice,
    entities: Mapping[str, Entity],
    edges: Edges,
    subject: Entity,
    told: Collection[Triple],
) -> Iterator[Plan]:
    """Yield untold facts about the subject, with a second fact now and then."""
    for relation, other in _steps(dice, edges, subject.id, told):
        first = entities[other]
        fact = forward((subject.id, relation, other))
        key = f"{subject.kind} {relation} {first.kind}"
        cast = {"s": subject, "o": first}
        if dice.chance(0.5):
            for pattern in dice.shuffled(CONTINUATIONS.get(key, ())):
                near = cast[pattern.start].id
                for relation_2, third in _steps(dice, edges, near, told):
                    second = entities[third]
                    if (relation_2, second.kind) != (pattern.relation, pattern.kind):
                        continue
                    if third in (subject.id, other):
                        continue
                    facts = (fact, forward((near, relation_2, third)))
                    yield Plan(pattern.key, {**cast, "p": second}, facts)
                    break
        if key in SENTENCES:
            yield Plan(key, cast, (fact,))


def _steps(
    dice: Dice, edges: Edges, subject: str, told: Collection[Triple]
) -> Iterator[tuple[str, str]]:
    """Yield each untold relation of the subject once, with one of its objects."""
    for relation in dice.shuffled(edges.get(subject, {})):
        options = [
            other
            for other in edges[subject][relation]
            if forward((subject, relation, other)) not in told
        ]
        if options:
            yield relation, dice.pick(options)
