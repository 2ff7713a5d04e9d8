"""Supervised training of an EntityNLM and its proposals on annotated text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lm_latent_eval.models.entitynlm.chain import Chains
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.conll import CoreferenceText
from lm_latent_eval.models.entitynlm.data import Annotator, collate_chains
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.learning import annotated_parts, train_checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START, WordTokenizer, split
from lm_latent_eval.training.options import EntityNLMSize, Options
from lm_latent_eval.training.supervised import Part

Item = tuple[list[int], list[int], list[int]]
"""Word ids, entities and remaining words of one text."""


def train_entitynlm(
    texts: Sequence[CoreferenceText],
    dev: Sequence[CoreferenceText],
    directory: Path,
    *,
    min_count: int = 2,
    size: EntityNLMSize | None = None,
    options: Options | None = None,
) -> EntityNLM:
    """Train p and its proposals, and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        min_count: Rarer words are unknown.
        size: How large the model is.
        options: How to train.

    Returns:
        The model with the best weights of each part.
    """
    size, options = size or EntityNLMSize(), options or Options()
    tokenizer = WordTokenizer.train((t.text for t in texts), min_count=min_count)
    config = EntityNLMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_unknown_types=tokenizer.count_unknown_types(
            word for text in texts for word in split(text.text)
        ),
        **vars(size),
    )
    torch.manual_seed(options.seed)
    model = EntityNLM(config)
    annotate = Annotator(tokenizer, size.max_mention_length)
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


def parts(model: EntityNLM) -> dict[str, Part[Item]]:
    """Return what is trained: log p(x, z) and log q(z | x) of every proposal."""
    return annotated_parts(model, _collate)


def _collate(items: Sequence[Item]) -> tuple[TokenBatch, Chains]:
    batch = TokenBatch.collate([ids for ids, _, _ in items], first=START)
    return batch, collate_chains([e for _, e, _ in items], [r for _, _, r in items])
