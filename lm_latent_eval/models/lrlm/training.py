"""Training of an LRLM on annotated text by the exact log p(x | topic).

Annotated texts are KGLM's (``kglm/data.py``): one file trains both. Every subject of a
fact is a topic; its facts are its own names, and the objects of its triples that have a
name. A text is about the subject of most of its triples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.kglm.data import AnnotatedText, Knowledge
from lm_latent_eval.models.kglm.training import build_vocabulary, surface_forms
from lm_latent_eval.models.learning import sizes, train_annotated
from lm_latent_eval.models.lrlm.configuration import LRLMConfig, RelationConfig
from lm_latent_eval.models.lrlm.latents import RelationState
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.network import pieces
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.files import digest
from lm_latent_eval.text.words import END, START, UNKNOWN, WordTokenizer
from lm_latent_eval.training.options import LRLMSize, Options
from lm_latent_eval.training.supervised import Part

ConfigT = TypeVar("ConfigT", bound=RelationConfig)


def train_lrlm(
    texts: Sequence[AnnotatedText],
    dev: Sequence[AnnotatedText],
    directory: Path,
    *,
    knowledge: Knowledge | None = None,
    min_count: int = 2,
    size: LRLMSize | None = None,
    options: Options | None = None,
) -> LRLM:
    """Train p and write the checkpoint; how texts name their facts is summed out.

    Arguments are those of ``train_kglm``: triples and names of the training text make
    the topics.
    """
    size, options = size or LRLMSize(), options or Options()
    tokenizer, topics, config = prepared(LRLMConfig, texts, knowledge, min_count, size)
    torch.manual_seed(options.seed)
    model = LRLM(config, topics)

    def loss(items: Sequence[Item]) -> Tensor:
        words, topic = zip(*items, strict=True)
        batch = TokenBatch.collate(words, first=START, device=model.device)
        about = RelationState.begin(torch.tensor(topic))
        return -model.log_joint(model.encode(batch, about), NO_LATENT).sum()

    annotate = Annotator(topics, tokenizer)
    of_p = {"p": Part(model, loss)}
    about = {**vars(size), "digest of the knowledge": digest(repr(knowledge))}
    train_annotated(
        model, of_p, annotate, texts, dev, directory, tokenizer, about, options
    )
    return model


def prepared(
    kind: type[ConfigT],
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    min_count: int,
    size: LRLMSize,
    **more: int,
) -> tuple[WordTokenizer, Topics, ConfigT]:
    """Build the tokenizer, topics and configuration of a relation model.

    Args:
        kind: Class of the configuration.
        texts: Training text.
        knowledge: Further facts and names.
        min_count: Rarer words are unknown.
        size: Size of the model.
        more: Further values of the configuration.
    """
    tokenizer = build_vocabulary(texts, knowledge, min_count=min_count)
    topics, relations = build_topics(
        texts,
        knowledge,
        tokenizer,
        max_aliases=size.max_aliases,
        max_alias_words=size.max_alias_words,
        num_pieces=size.num_pieces,
    )
    counted = sizes(tokenizer, (text.text for text in texts))
    counted |= {**topics.sizes(), **more}
    config = kind(
        num_relations=len(relations),
        embedding_dim=size.embedding_dim,
        predictor_dim=size.embedding_dim,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        fact_dim=size.fact_dim,
        alias_dim=size.fact_dim,
        num_pieces=size.num_pieces,
        dropout=size.dropout,
        **counted,
    )
    return tokenizer, topics, config


# -- topics and names of annotated texts --------------------------------------------

TITLE = 0
"""Relation between a topic and its own names."""

Item = tuple[list[int], int]
"""Word ids of a text with its end, and the number of its topic; 0 for none."""


def build_topics(
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    tokenizer: WordTokenizer,
    *,
    max_aliases: int,
    max_alias_words: int,
    num_pieces: int,
) -> tuple[Topics, list[str]]:
    """Collect topics and their facts from annotated texts and knowledge.

    Returns:
        The topics, and the names of their relations in order.

    Raises:
        ValueError: If no subject of a fact, and no object, has a name.
    """
    triples = chain(
        (triple for text in texts for triple in text.triples),
        knowledge.triples if knowledge else (),
    )
    distinct = sorted(set(triples))
    relations = ["", *sorted({relation for _, relation, _ in distinct})]
    relation_id = {name: n for n, name in enumerate(relations)}
    names = _Names(
        surface_forms(texts, knowledge), tokenizer, max_aliases, max_alias_words
    )
    topics: dict[str, list[Fact]] = {}
    for subject in sorted({subject for subject, _, _ in distinct}):
        topics[subject] = names.fact(TITLE, subject)
    for subject, relation, tail in distinct:
        topics[subject] += names.fact(relation_id[relation], tail)
    topics = {name: facts for name, facts in topics.items() if facts}
    if not topics:
        raise ValueError(
            "no text has triples whose subjects or objects have a name: there is "
            "nothing that texts could be about"
        )
    counts = Counter(topic for t in texts if (topic := topic_of(t, topics)) is not None)
    spelled = [pieces(alias, num_pieces) for alias in names.strings]
    return Topics.build(topics, names.words, counts=counts, pieces=spelled), relations


def topic_of(text: AnnotatedText, topics: Mapping[str, object]) -> str | None:
    """Subject of most triples of a text, the first if several tie."""
    subjects = Counter(s for s, _, _ in text.triples if s in topics)
    return subjects.most_common(1)[0][0] if subjects else None


class Annotator:
    """Turns annotated texts into word ids and the number of their topic."""

    def __init__(self, topics: Topics, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        self.topics = {name: n for n, name in enumerate(topics.names, start=1)}

    def __call__(self, text: AnnotatedText) -> Item:
        topic = topic_of(text, self.topics)
        topic_id = 0 if topic is None else self.topics[topic]
        return [*self.tokenizer(text.text).ids, END], topic_id


class _Names:
    """Numbers aliases in the order of facts."""

    def __init__(
        self,
        forms: Mapping[str, Sequence[str]],
        tokenizer: WordTokenizer,
        max_aliases: int,
        max_words: int,
    ) -> None:
        self.forms, self.tokenizer = forms, tokenizer
        self.max_aliases, self.max_words = max_aliases, max_words
        self.row: dict[tuple[int, ...], int] = {}
        self.strings: list[str] = []

    @property
    def words(self) -> list[tuple[int, ...]]:
        return list(self.row)

    def fact(self, relation: int, entity: str) -> list[Fact]:
        """Fact about an entity, if that has a name of known words.

        Unknown words are dropped: their spelling is ambiguous, so they cannot be
        copied.
        """
        named = [
            (form, words[: self.max_words])
            for form in self.forms.get(entity, ())
            if (words := tuple(i for i in self.tokenizer(form).ids if i != UNKNOWN))
        ]
        rows = []
        for form, words in named[: self.max_aliases]:
            if words not in self.row:
                self.row[words] = len(self.row)
                self.strings.append(form)
            if self.row[words] not in rows:
                rows.append(self.row[words])
        return [Fact(relation, 0, tuple(rows))] if rows else []
