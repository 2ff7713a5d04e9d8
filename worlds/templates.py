"""What can be said about each fact, and how a sentence is written down.

A key names the facts that a sentence states, by the kinds of their ends:

- ``person born_in town``: one fact; s is the person, o the town.
- ``person born_in town located_in region``: a chain; p is the region of the town o.
- ``person born_in town & lives_in town``: two facts about s; p is the second object.

A sentence has slots for mentions and words to choose:

- ``{s}``, ``{o}``, ``{p}``: s may be any mention, as the subject of a verb ("she");
  o and p are nouns.
- ``{s:him}``: any mention, as an object; ``{s:noun}``: no pronoun;
  ``{s:name}``, ``{o:name}``: a proper name; ``{s:he}``, ``{s:his}``: that pronoun only.
- ``[trade]``: a word of ``fillers.BANKS``; ``[kind]``: what s is ("port").
- The article is always "a"; the writer makes it "an" where it must.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from worlds import sentences_people, sentences_things

GROUPS = {"work": ("book", "film", "song")}
SLOT = re.compile(r"\{(?P<who>[sop])(?::(?P<form>\w+))?\}|\[(?P<bank>\w+)\]")


@dataclass(frozen=True)
class Pattern:
    """The second fact of a two-fact sentence.

    Attributes:
        start: "s" in a fork, "o" in a chain.
        relation: From ``start`` to p.
        kind: Of p.
        key: Of the sentences.
    """

    start: str
    relation: str
    kind: str
    key: str


def expanded(table: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the table with keys of a group ("work") copied to each of its kinds.

    Example:
        >>> expanded({"work genre genre": ("{s} is a {o}.",)})["film genre genre"]
        ('{s} is a {o}.',)
    """
    result: dict[str, tuple[str, ...]] = {}
    for key, sentences in table.items():
        group = next((x for x in GROUPS if x in key.split()), None)
        for kind in GROUPS[group] if group else ("",):
            concrete = re.sub(rf"\b{group}\b", kind, key) if group else key
            result[concrete] = result.get(concrete, ()) + sentences
    return result


SENTENCES = expanded({**sentences_people.SENTENCES, **sentences_things.SENTENCES})
REMARKS = {**sentences_people.REMARKS, **sentences_things.REMARKS}


def continuations() -> dict[str, list[Pattern]]:
    """Return, for each one-fact key, the ways to add a second fact."""
    patterns: dict[str, list[Pattern]] = {}
    for key in SENTENCES:
        words = key.split()
        if len(words) == 3:
            continue
        start = "s" if words[3] == "&" else "o"
        pattern = Pattern(start, words[-2], words[-1], key)
        patterns.setdefault(" ".join(words[:3]), []).append(pattern)
    return patterns


CONTINUATIONS = continuations()
