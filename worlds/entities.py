"""Who and what lives in the demonstration world: names, aliases, pronouns.

Names are put together from lists of our own. Most of their words occur nowhere else
in the texts, so a model that cannot copy from an alias has to spell them as unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from worlds.dice import Dice, words

PRONOUNS = {
    "f": {"he": "she", "him": "her", "his": "her"},
    "m": {"he": "he", "him": "him", "his": "his"},
    "n": {"he": "it", "him": "it", "his": "its"},
}

WOMEN = words("""
    Ilsa Mara Tessel Orla Brenna Sunniva Vesna Livia Dorrit Hanne Elowen Katrin Noemi
    Saskia Ysolde Marit Annika Linnet Zdena Imke Corisande Perpetua Radka Oriel
""")
MEN = words("""
    Anselm Bertil Casper Dorian Emrys Florian Gideon Hakon Ivo Jorun Konrad Lasse
    Matthias Nils Osric Piers Quillon Rurik Soren Tobias Ulric Viktor Wendel Yorick
""")
SURNAMES = (
    words("""
        Vor Kel Har Brun Tam Sel Dru Mor Fen Gar Lin Osk Pel Quar Ros Stav Tor Und Wex
        Zan
    """),
    words("sen ritt ander brand quist loe mont gard vane strom bek ley"),
)
TOWNS = (
    words("""
        Mel Tarn Kes Ald Brim Corv Dunna Eskel Fal Grim Hest Ivel Lask Norra Orm Pend
        Quen Rav Stell Thar Ving Wend Yar
    """),
    words("combe wick ford holm mere stead thorpe haven minster gate"),
)
TOWN_STYLES = (
    ("{}", "town"),
    ("{}", "town"),
    ("{}", "village"),
    ("{}", "market town"),
    ("Port {}", "port"),
    ("Upper {}", "village"),
    ("Saint {}", "town"),
)
COINAGES = (
    words("""
        Ostr Verm Cald Trell Hask Neb Zeph Pav Lum Krest Opal Arg Belm Daw Silv Wyr
    """),
    words("ion ara well ane olt ix una ory"),
)
INDUSTRIES = (
    ("{} Mills", "textile mill"),
    ("{} Foundry", "iron foundry"),
    ("{} Brewery", "family brewery"),
    ("{} Press", "publisher"),
    ("{} Glass", "glassworks"),
    ("{} Valley Instruments", "instrument maker"),
    ("{} Coastal Shipping", "shipping line"),
    ("{} Motors", "carmaker"),
    ("{} Optics", "optical workshop"),
    ("{} Light Railways", "railway company"),
)
REGIONS = (
    "Vellaria",
    "Karrowmark",
    "Sundrey",
    "Thessaland",
    "Norvale",
    "Ambrine",
    "Drovenia",
    "Lower Tamarine",
)
RIVERS = words("Orre Tavel Sillen Durrow Isk Marn Wellow Ambry Cressel Loth")
SCHOOLS = (
    ("Talvane University", "university"),
    ("Orrin College", "college"),
    ("Lorne Institute", "institute"),
    ("Hexley Academy", "academy"),
    ("Pascoe University", "university"),
    ("Tindall College", "college"),
    ("Averil Conservatory", "conservatory"),
    ("Zennor Institute", "institute"),
)
PRIZES = (
    ("the Silver Heron", "award"),
    ("the Mirelle Medal", "medal"),
    ("the Dorcas Prize", "prize"),
    ("the Golden Lathe", "award"),
    ("the Ondine Award", "award"),
    ("the Bellwether Prize", "prize"),
    ("the Tarrant Medal", "medal"),
    ("the Copper Quill", "prize"),
)
TITLE_FRONTS = words("""
    Salt Glass Hollow Amber Crooked Paper Velvet Iron Drowned Second Scarlet Borrowed
    Thirteenth Pewter
""")
TITLE_HEADS = words("""
    Ledger Orchard Lantern Almanac Causeway Clockmaker Gallows Parlour Sparrow Compass
    Tide Cartographer Bellringer Meridian
""")
TITLE_TAILS = words("""
    Tirrel Marenka Ossian Lhune Belisande Caravel Yllen Drusk Mirador Penhallow Sabine
    Tolvey Ravelin Eskerry Zorah Ulmire
""")
SONG_STYLES = ("Waltz for {}", "Farewell to {}", "Rain over {}", "Letters from {}")
GENRES = {
    "book": ("crime novel", "ghost story", "memoir", "travel book", "romance"),
    "film": ("comedy", "thriller", "documentary", "melodrama"),
    "song": ("ballad", "lullaby", "sea shanty", "march"),
}
OCCUPATIONS = {
    "book": ("novelist", "writer"),
    "film": ("director",),
    "song": ("singer", "songwriter"),
    "founder": ("engineer", "merchant", "inventor", "entrepreneur"),
    "employee": ("chemist", "clerk", "designer", "surveyor", "mechanic", "editor"),
}
TITLES = {"engineer": "Old", "inventor": "Professor", "chemist": "Doctor"}
PEOPLE = {"book": 20, "film": 11, "song": 12, "founder": 27, "employee": 42}
COUNTS = {
    "town": 40,
    "company": 32,
    "book": 26,
    "film": 14,
    "song": 16,
}


@dataclass(frozen=True)
class Entity:
    """Something with names.

    Attributes:
        id: ``kind/slug``, such as ``person/ilsa_vorsen``.
        names: Proper names, the most usual first.
        noun: What it is: "novelist", "port"; empty for years and genres.
        descriptions: Definite descriptions, such as "the port".
        pronoun: A key of ``PRONOUNS``, or empty where none refers to it.
        trade: For a person, what they can do in the world (``OCCUPATIONS``).
        born: For a person, the year; texts never say it, it keeps dates plausible.
    """

    id: str
    names: tuple[str, ...]
    noun: str = ""
    descriptions: tuple[str, ...] = ()
    pronoun: str = "n"
    trade: str = ""
    born: int = 0

    @property
    def kind(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def aliases(self) -> list[str]:
        """Every surface string, the most usual first, sentence-initial forms last."""
        surfaces = [*self.names, *self.descriptions]
        return surfaces + [capitalised(x) for x in surfaces if x.startswith("the ")]


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def thing(kind: str, *names: str, noun: str = "", generic: str = "") -> Entity:
    """Return an entity called "it"; ``generic`` is a second, wider noun."""
    nouns = [x for x in (noun, generic) if x]
    return Entity(
        id=entity_id(kind, names[0]),
        names=tuple(dict.fromkeys(names)),
        noun=noun,
        descriptions=tuple(dict.fromkeys(f"the {x}" for x in nouns)),
    )


def entity_id(kind: str, name: str) -> str:
    """Return ``kind/slug`` for a name; a leading article is dropped."""
    words = re.findall(r"\w+", name.removeprefix("the ").lower())
    return f"{kind}/{'_'.join(words)}"


def literal(kind: str, value: str) -> Entity:
    """Return a year or a genre: one surface form, no pronoun, no description."""
    return Entity(id=entity_id(kind, value), names=(value,), pronoun="")


def invent(dice: Dice) -> list[Entity]:
    """Return everything but the years, which come with the events dated by them."""
    return [
        *people(dice),
        *towns(dice),
        *(thing("region", name, noun="province") for name in REGIONS),
        *(
            thing("river", f"the River {name}", f"the {name}", noun="river")
            for name in RIVERS
        ),
        *companies(dice),
        *(thing("school", x, x.split()[0], noun=noun) for x, noun in SCHOOLS),
        *(thing("prize", x, noun=noun) for x, noun in PRIZES),
        *works(dice),
        *(literal("genre", x) for genres in GENRES.values() for x in genres),
    ]


def people(dice: Dice) -> Iterator[Entity]:
    """Invent people: no surname twice, given names shared now and then."""
    surnames = iter(blends(dice, SURNAMES))
    trades = [x for x, count in PEOPLE.items() for _ in range(count)]
    for number, trade in enumerate(trades):
        gender, given_names = [("f", WOMEN), ("m", MEN)][number % 2]
        given, surname = dice.pick(given_names), next(surnames)
        occupation = dice.pick(OCCUPATIONS[trade])
        full = f"{given} {surname}"
        names = [full, surname]
        if occupation in TITLES:
            names.append(f"{TITLES[occupation]} {surname}")
        yield Entity(
            id=entity_id("person", full),
            names=tuple(names),
            noun=occupation,
            descriptions=(f"the {occupation}",),
            pronoun=gender,
            trade=trade,
            born=dice.between(1938, 1978),
        )


def towns(dice: Dice) -> Iterator[Entity]:
    """Invent towns; the first of each style's names is the full one."""
    for stem in blends(dice, TOWNS)[: COUNTS["town"]]:
        style, noun = dice.pick(TOWN_STYLES)
        generic = "town" if noun == "market town" else ""
        yield thing("town", style.format(stem), stem, noun=noun, generic=generic)


def companies(dice: Dice) -> Iterator[Entity]:
    """Invent companies; names of three words also have their initials."""
    for number, stem in enumerate(blends(dice, COINAGES)[: COUNTS["company"]]):
        style, noun = INDUSTRIES[number % len(INDUSTRIES)]
        name = style.format(stem)
        names = [name, stem]
        if len(name.split()) == 3:
            names.append("".join(word[0] for word in name.split()))
        yield thing("company", *names, noun=noun, generic="company")


def works(dice: Dice) -> Iterator[Entity]:
    """Invent books and films (The Salt Ledger of Tirrel), and songs."""
    titles = iter(dice.shuffled(product(TITLE_FRONTS, TITLE_HEADS)))
    for kind in ("book", "film"):
        for _ in range(COUNTS[kind]):
            short = "The " + " ".join(next(titles))
            full = f"{short} of {dice.pick(TITLE_TAILS)}" if dice.chance(0.3) else short
            yield thing(kind, full, short, noun=kind)
    songs = dice.shuffled(product(SONG_STYLES, TITLE_TAILS))[: COUNTS["song"]]
    for style, tail in songs:
        yield thing("song", style.format(tail), noun="song")


def blends(dice: Dice, parts: Sequence[Sequence[str]]) -> list[str]:
    """Return every beginning with every ending, in a random order."""
    return dice.shuffled("".join(pair) for pair in product(*parts))
