"""Supervised training of a KGLM and its proposals on annotated text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.data import (
    AnnotatedText,
    Annotator,
    Knowledge,
    build_graph,
    build_vocabulary,
    collate_walks,
)
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.kglm.steps import Walks
from lm_latent_eval.models.learning import annotated_parts, train_checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START, WordTokenizer
from lm_latent_eval.training.options import KGLMSize, Options
from lm_latent_eval.training.supervised import Part

Item = tuple[list[int], list[int], list[int]]
"""Word ids, mention types and nodes of one text."""


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
    tokenizer, num_unknown = build_vocabulary(texts, knowledge, min_count=min_count)
    model = new_model(texts, knowledge, tokenizer, num_unknown, size, options.seed)
    annotate = Annotator(model.knowledge, tokenizer, size.cutoff)
    train_checkpoint(
        model,
        parts(model),
        [annotate(text) for text in texts],
        [annotate(text) for text in dev],
        directory,
        tokenizer,
        options,
        size=lambda item: len(item[0]),
        about=vars(size),
        spelled=[text.text for text in texts],
    )
    return model


def new_model(
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    tokenizer: WordTokenizer,
    num_unknown: int,
    size: KGLMSize,
    seed: int,
) -> KGLM:
    """Build an untrained model over the graph of the texts."""
    graph = build_graph(
        texts,
        knowledge,
        tokenizer,
        max_aliases=size.max_aliases,
        max_alias_words=size.max_alias_words,
    )
    config = KGLMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        num_unknown_types=num_unknown,
        **vars(size),
    )
    torch.manual_seed(seed)
    return KGLM(config, graph)


def parts(model: KGLM) -> dict[str, Part[Item]]:
    """Return what is trained: log p(x, z) and log q(z | x) of every proposal."""
    return annotated_parts(model, _collate)


def _collate(items: Sequence[Item]) -> tuple[TokenBatch, Walks]:
    batch = TokenBatch.collate([ids for ids, _, _ in items], first=START)
    return batch, collate_walks([m for _, m, _ in items], [n for _, _, n in items])
