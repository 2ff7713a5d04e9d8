"""Training of an LRLM on annotated text by the exact log p(x | topic)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.data import AnnotatedText, Knowledge, build_vocabulary
from lm_latent_eval.models.learning import train_checkpoint
from lm_latent_eval.models.lrlm.configuration import LRLMConfig, RelationConfig
from lm_latent_eval.models.lrlm.data import Annotator, Item, build_topics
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.state import Everything, RelationState
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START, WordTokenizer
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

    Args:
        texts: Training text; its triples and names make the topics.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        knowledge: Facts and names beyond those of the training text.
        min_count: Rarer words are unknown.
        size: How large the model is.
        options: How to train.
    """
    size, options = size or LRLMSize(), options or Options()
    tokenizer, topics, config = prepared(LRLMConfig, texts, knowledge, min_count, size)
    torch.manual_seed(options.seed)
    model = LRLM(config, topics)

    def loss(items: Sequence[Item]) -> Tensor:
        batch = TokenBatch.collate([ids for ids, _ in items], first=START)
        about = RelationState.begin(torch.tensor([topic for _, topic in items]))
        return -model.log_joint(model.encode(batch, about), Everything()).sum()

    annotate = Annotator(topics, tokenizer)
    train_checkpoint(
        model,
        {"p": Part(model, loss)},
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


def prepared(
    kind: type[ConfigT],
    texts: Sequence[AnnotatedText],
    knowledge: Knowledge | None,
    min_count: int,
    size: LRLMSize,
    **more: int,
) -> tuple[WordTokenizer, Topics, ConfigT]:
    """Build what a model of relations is trained with.

    Args:
        kind: Of the configuration.
        texts: Training text.
        knowledge: Facts and names beyond its own.
        min_count: Rarer words are unknown.
        size: How large the model is.
        more: What else the configuration takes.

    Returns:
        The vocabulary, the topics and the configuration.
    """
    tokenizer, num_unknown = build_vocabulary(texts, knowledge, min_count=min_count)
    topics, relations = build_topics(
        texts,
        knowledge,
        tokenizer,
        max_aliases=size.max_aliases,
        max_alias_words=size.max_alias_words,
        num_pieces=size.num_pieces,
    )
    sizes: dict[str, Any] = {**topics.sizes(), **more}
    config = kind(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_relations=len(relations),
        num_unknown_types=num_unknown,
        embedding_dim=size.embedding_dim,
        predictor_dim=size.embedding_dim,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        fact_dim=size.fact_dim,
        alias_dim=size.fact_dim,
        num_pieces=size.num_pieces,
        dropout=size.dropout,
        **sizes,
    )
    return tokenizer, topics, config
