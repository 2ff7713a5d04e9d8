"""Training of an NKLM on annotated text by log p(x, z | topic)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.data import AnnotatedText, Knowledge
from lm_latent_eval.models.learning import train_checkpoint
from lm_latent_eval.models.lrlm.training import prepared
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.data import Annotator, Item
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.models.nklm.state import Copies
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from lm_latent_eval.training.options import NKLMSize, Options
from lm_latent_eval.training.supervised import Part


def train_nklm(
    texts: Sequence[AnnotatedText],
    dev: Sequence[AnnotatedText],
    directory: Path,
    *,
    knowledge: Knowledge | None = None,
    min_count: int = 2,
    size: NKLMSize | None = None,
    options: Options | None = None,
) -> NKLM:
    """Train p and write the checkpoint; its proposals need no training.

    Args:
        texts: Training text; its triples and names make the topics. Texts that are
            about none of them are left out.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        knowledge: Facts and names beyond those of the training text.
        min_count: Rarer words are unknown.
        size: How large the model is.
        options: How to train.
    """
    size, options = size or NKLMSize(), options or Options()
    tokenizer, topics, config = prepared(
        NKLMConfig,
        texts,
        knowledge,
        min_count,
        size,
        num_positions=size.max_alias_words,
    )
    torch.manual_seed(options.seed)
    model = NKLM(config, topics)
    annotate = Annotator(topics, tokenizer, config.num_positions)
    train_on, hold_out = (
        [item for text in several if (item := annotate(text)) is not None]
        for several in (texts, dev)
    )
    train_checkpoint(
        model,
        {"p": Part(model, lambda items: _loss(model, items))},
        train_on,
        hold_out,
        directory,
        tokenizer,
        options,
        size=lambda item: len(item[0]),
        about=vars(size),
        spelled=[text.text for text in texts],
    )
    return model


def _loss(model: NKLM, items: Sequence[Item]) -> Tensor:
    words, topics, sources, offsets = zip(*items, strict=True)
    batch = TokenBatch.collate(words, first=START)
    topic = torch.tensor(topics)
    copies = Copies(topic[:, None], *(_padded(c) for c in (sources, offsets)))
    return -model.log_joint(model.encode(batch, model.begin(topic)), copies).sum()


def _padded(rows: Sequence[list[int]]) -> Tensor:
    """Pad rows of B texts, (B, 1, T)."""
    columns = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)[:, None]
