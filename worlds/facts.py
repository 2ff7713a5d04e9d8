"""Multiple-choice questions about facts that the training texts never state.

The wording is that of the training texts: a sentence up to its last mention, which is
to be chosen among four of a kind. A model that reads the graph can know the answer.
"""

from collections.abc import Iterator

from lm_latent_eval.demo import FactQuestion
from worlds.dice import Dice
from worlds.entities import capitalised
from worlds.graph import Triple, backward
from worlds.templates import SENTENCES, SLOT
from worlds.world import World

NUM_CHOICES = 4
NUM_QUESTIONS = 150


def facts(world: World) -> list[FactQuestion]:
    """Return questions about the world's withheld facts, the same each time.

    Every question has one true choice: the others stand in the same relation to
    something else of the subject's kind, but not to the subject itself.
    """
    dice = Dice(f"{world.seed}/facts")
    questions: dict[str, FactQuestion] = {}
    for fact in dice.shuffled(world.withheld):
        told = [x for x in (fact, backward(fact)) if x and _openings(world, x)]
        if told and len(questions) < NUM_QUESTIONS:
            question = _question(dice, world, dice.pick(told))
            if len(question["choices"]) == NUM_CHOICES:
                questions.setdefault(question["context"], question)
    return list(questions.values())


def _question(dice: Dice, world: World, triple: Triple) -> FactQuestion:
    """Ask for the triple's object; short of choices where few things are like it."""
    subject, relation, answer = triple
    true = {x[2] for x in world.triples if x[:2] == (subject, relation)}
    alike = dict.fromkeys(  # objects of like facts: writers, if it asks for a writer
        other
        for one, name, other in world.triples
        if (_kind(one), name, _kind(other)) == (_kind(subject), relation, _kind(answer))
    )
    others = [x for x in alike if x not in true and x != subject]
    choices = dice.shuffled([answer, *dice.shuffled(others)[: NUM_CHOICES - 1]])
    return FactQuestion(
        context=dice.pick(_openings(world, triple)),
        choices=[f" {world.aliases[x][0]}" for x in choices],
        answer=choices.index(answer),
    )


def _openings(world: World, triple: Triple) -> list[str]:
    """Return sentences that state the triple, each cut before its object."""
    return list(_cut_sentences(world, triple))


def _cut_sentences(world: World, triple: Triple) -> Iterator[str]:
    subject, relation, other = triple
    name = world.aliases[subject][0]
    for template in SENTENCES.get(f"{_kind(subject)} {relation} {_kind(other)}", ()):
        opening = template.removesuffix(" {o}.")
        slots = [(x["who"], x["form"] or "") for x in SLOT.finditer(opening)]
        if opening != template and slots in ([("s", "")], [("s", "noun")]):
            yield capitalised(SLOT.sub(lambda _: name, opening))


def _kind(entity: str) -> str:
    return entity.partition("/")[0]
