"""Training of an NKLM on annotated text by log p(x, z | topic)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.data import AnnotatedText, Knowledge
from lm_latent_eval.models.learning import padded, train_annotated
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.models.lrlm.training import Annotator as TopicAnnotator
from lm_latent_eval.models.lrlm.training import prepared
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Copies
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.files import digest
from lm_latent_eval.text.words import START, WordTokenizer
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

    Arguments are those of ``train_kglm``: triples and names of the training text make
    the topics. Texts that are about none of them are left out.
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
    of_p = {"p": Part(model, partial(_loss, model))}
    about = {**vars(size), "digest of the knowledge": digest(repr(knowledge))}
    train_annotated(
        model, of_p, annotate, texts, dev, directory, tokenizer, about, options
    )
    return model


def _loss(model: NKLM, items: Sequence[Item]) -> Tensor:
    words, topics, sources, offsets = zip(*items, strict=True)
    batch = TokenBatch.collate(words, first=START, device=model.device)
    topic = torch.tensor(topics)
    copies = Copies(topic[:, None], padded(sources), padded(offsets))
    return -model.log_joint(model.encode(batch, model.begin(topic)), copies).sum()


# -- copied words -------------------------------------------------------------------

Item = tuple[list[int], int, list[int], list[int]]
"""Word ids of a text, its topic, and the source and offset of each word."""

Name = tuple[int, int, list[int]]
"""A naming, the index of its alias in the fact, and its words."""


class Annotator:
    """Turns annotated texts into word ids, a topic, and what was copied."""

    def __init__(
        self, topics: Topics, tokenizer: WordTokenizer, num_positions: int
    ) -> None:
        """Index the names that can be copied whole by topic."""
        self.read = TopicAnnotator(topics, tokenizer)
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
        """Training item of a text; None if the text is about no topic."""
        words, topic = self.read(text)
        if not topic:
            return None
        source, offset = copied(words, self.names.get(topic, []))
        return words, topic, source, offset


def copied(words: Sequence[int], names: Sequence[Name]) -> tuple[list[int], list[int]]:
    """Source and offset of each word.

    Names in a text are taken one after another, the longest first, of those the
    leftmost, and of those first aliases before others; a name is taken if none of its
    words was. All other words are plain.

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
        positions = range(start, start - size)
        if all(source[t] == WORD for t in positions):
            for t in positions:
                source[t], offset[t] = naming + 1, t - start
    return source, offset
