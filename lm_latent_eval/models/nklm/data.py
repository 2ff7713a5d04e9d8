"""Annotation of copied words by the original's rule.

Names of the facts of its topic that stand in a text are taken one after another, the
longest first, of those the leftmost, and of those first aliases before others; a name
is taken if none of its words was. What is taken was copied, all else is words.
"""

from __future__ import annotations

from collections.abc import Sequence

from lm_latent_eval.models.kglm.data import AnnotatedText
from lm_latent_eval.models.lrlm import data
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.models.nklm.state import WORD
from lm_latent_eval.text.words import WordTokenizer

Item = tuple[list[int], int, list[int], list[int]]
"""Word ids of a text, its topic, and where each word comes from: source and offset."""
Name = tuple[int, int, list[int]]
"""A naming, which alias of its fact it is, and its words."""


class Annotator:
    """Turns annotated texts into word ids, a topic, and what was copied."""

    def __init__(
        self, topics: Topics, tokenizer: WordTokenizer, num_positions: int
    ) -> None:
        """Index the topics by name, and their names that can be copied whole."""
        self.read = data.Annotator(topics, tokenizer)
        self.names: dict[int, list[Name]] = {}
        surfaces, last = 0, -1
        for naming, alias in enumerate(topics.naming_alias.tolist()):
            fact = int(topics.naming_fact[naming])
            surfaces, last = (surfaces + 1 if fact == last else 0), fact
            words = [w for w in topics.alias_words[alias].tolist() if w != PAD]
            if len(words) <= num_positions:
                topic = int(topics.naming_topic[naming])
                self.names.setdefault(topic, []).append((naming, surfaces, words))

    def __call__(self, text: AnnotatedText) -> Item | None:
        """Return what is to be learnt of a text; None if it is about no topic."""
        words, topic = self.read(text)
        if not topic:
            return None
        source, offset = copied(words, self.names.get(topic, []))
        return words, topic, source, offset


def copied(words: Sequence[int], names: Sequence[Name]) -> tuple[list[int], list[int]]:
    """Return where each word comes from: source and offset.

    Example:
        >>> copied([7, 8, 9, 7], [(0, 0, [7]), (1, 1, [7, 8])])
        ([2, 2, 0, 1], [0, 1, 0, 0])
    """
    spans = [
        (-len(name), start, surface > 0, naming)
        for naming, surface, name in names
        for start in range(len(words) - len(name) + 1)
        if list(words[start : start + len(name)]) == name
    ]
    source, offset = [WORD] * len(words), [0] * len(words)
    for size, start, _, naming in sorted(spans):
        places = range(start, start - size)
        if all(source[t] == WORD for t in places):
            for t in places:
                source[t], offset[t] = naming + 1, t - start
    return source, offset
