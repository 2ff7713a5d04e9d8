"""Supervised training of a KGLM and its proposals on annotated text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import torch

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.data import NAMING, AnnotatedText, Knowledge, Span
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.latents import Mention, Walks
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.learning import annotated_parts, sizes, train_annotated
from lm_latent_eval.text.files import digest
from lm_latent_eval.text.words import END, UNKNOWN, WordTokenizer
from lm_latent_eval.training.options import KGLMSize, Options


def train_kglm(
    texts: Sequence[AnnotatedText],
    dev: Sequence[AnnotatedText],
    directory: Path,
    *,
    knowledge: Knowledge | None = None,
    min_count: int = 2,
    size: KGLMSize | None = None,
    options: Options | None = None,
) -> KGLM:
    """Train p and its proposals, and write the checkpoint.

    Args:
        texts: Training text; its triples and names make the graph and the aliases.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        knowledge: Facts and names beyond those of the training text.
        min_count: Rarer words are unknown.
        size: How large the model is.
        options: How to train.

    Returns:
        The model with the best weights of each part.
    """
    size, options = size or KGLMSize(), options or Options()
    tokenizer = build_vocabulary(texts, knowledge, min_count=min_count)
    graph = build_graph(
        texts,
        knowledge,
        tokenizer,
        max_aliases=size.max_aliases,
        max_alias_words=size.max_alias_words,
    )
    config = KGLMConfig(
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        **sizes(tokenizer, (text.text for text in texts)),
        **vars(size),
    )
    torch.manual_seed(options.seed)
    model = KGLM(config, graph)
    annotate = Annotator(graph, tokenizer, size.cutoff)
    parts = annotated_parts(model, Walks)
    about = {**vars(size), "digest of the knowledge": digest(repr(knowledge))}
    train_annotated(
        model, parts, annotate, texts, dev, directory, tokenizer, about, options
    )
    return model


# -- the graph, the vocabulary and the walks of annotated texts ---------------------


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
) -> WordTokenizer:
    """Collect the words of a training text."""
    forms = surface_forms(texts, knowledge)
    return WordTokenizer.train(
        (text.text for text in texts),
        min_count=min_count,
        copied=[form for names in forms.values() for form in names],
    )


def build_graph(
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    tokenizer: WordTokenizer,
    *,
    max_aliases: int,
    max_alias_words: int,
) -> KnowledgeGraph:
    """Build the knowledge graph of annotated texts."""
    # A word that is unknown cannot be copied: it could stand for any.
    aliases = {
        entity: [
            known
            for form in forms
            if (known := [i for i in tokenizer(form).ids if i != UNKNOWN])
        ]
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
            heads = torch.tensor(recent, dtype=torch.long).unique()
            tails = torch.full_like(heads, node[t])
            first, end = self.graph.edges_between(heads, tails)
            derived = bool((end > first).any())
            mention[t] = int(Mention.DERIVED if derived else Mention.NEW)
        return [*words.ids, END], mention, node
