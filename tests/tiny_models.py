"""Models and texts small enough to enumerate, and lopsided enough to notice a swap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lm_latent_eval.demo import documents
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.data import AnnotatedText
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.recurrent_lm import (
    LSTMConfig,
    LSTMLanguageModel,
)
from lm_latent_eval.models.srnn import SentenceRNN, SRNNConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN, WordTokenizer

KNOWN, COPIED = 4, 5
"""The one ordinary word of a tiny KGLM, and the one that it can only copy."""
SYMBOLS = (UNKNOWN, END, KNOWN, COPIED)
"""Every word that a tiny KGLM can emit."""


def tokenizer() -> WordTokenizer:
    """Words of the tiny models: ``the`` can be uttered, ``Ada`` only copied."""
    words = WordTokenizer.train(["the the"], copied=["the Ada"])
    assert words.vocab_size == COPIED, "premise"
    assert words.num_words == len(SYMBOLS) + 2, "premise"
    return words


def plain_graph() -> KnowledgeGraph:
    """Two parallel edges lead from one node to another; that one leads nowhere."""
    return KnowledgeGraph.build(
        [("Ada", "knows", "Bo"), ("Ada", "likes", "Bo")],
        {"Ada": [[COPIED], [KNOWN, COPIED]], "Bo": [[KNOWN]]},
        max_aliases=2,
        max_alias_words=2,
        reflexive=False,
        inverse=False,
    )


def full_graph() -> KnowledgeGraph:
    """A graph as training builds it: with self-loops and inverse relations."""
    return KnowledgeGraph.build(
        [("Ada", "knows", "Bo")],
        {"Ada": [[KNOWN, COPIED], [COPIED]]},
        max_aliases=2,
        max_alias_words=3,
    )


WORDS = {"vocab_size": COPIED, "num_words": COPIED + 1, "num_unknown_types": 7}


def kglm(
    graph: KnowledgeGraph, *, seed: int = 0, spread: float = 1.0, **more: int
) -> KGLM:
    """A new KGLM in float64, with random weights of a standard deviation."""
    size = {"token_embedding_dim": 3, "hidden_size": 4, "cutoff": 2, **WORDS, **more}
    config = KGLMConfig(
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        entity_embedding_dim=2,
        num_layers=2,
        max_aliases=graph.aliases.shape[1],
        max_alias_words=graph.aliases.shape[2],
        **size,
    )
    return randomised(KGLM(config, graph).double(), seed, spread).eval()


def lstm(seed: int = 0, spread: float = 1.0, **more: int) -> LSTMLanguageModel:
    """A new LSTM over the same words, in float64."""
    config = LSTMConfig(**{"embedding_dim": 3, "hidden_size": 4, **WORDS, **more})
    return randomised(LSTMLanguageModel(config).double(), seed, spread).eval()


def srnn(seed: int = 0, vocab_size: int = COPIED, hidden_size: int = 3) -> SentenceRNN:
    """A new sentence-level RNN over the words but ``Ada``, in float64."""
    config = SRNNConfig(vocab_size=vocab_size, hidden_size=hidden_size)
    return randomised(SentenceRNN(config).double(), seed, 1.0).eval()


def randomised(model, seed: int, spread: float):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, spread, generator=generator)
    return model.requires_grad_(False)


def batch(texts: Sequence[Sequence[int]], unknown: float = 0.0) -> TokenBatch:
    """Texts of ``SYMBOLS``.

    An unknown word is one symbol of cost ``unknown``; a word that can be copied is
    itself only where it is, and has probability zero elsewhere.
    """
    cost = {UNKNOWN: unknown, COPIED: -torch.inf}
    costs = [[cost.get(i, 0.0) for i in text] for text in texts]
    return TokenBatch.collate(texts, costs, first=START)


def annotated(number: int) -> list[AnnotatedText]:
    """The first texts of the demonstration world, with spaces between all tokens."""
    return [
        AnnotatedText.from_json({**document, "text": " ".join(document["tokens"])})
        for document in documents("dev")[:number]
    ]


def damage(path: Path) -> None:
    """Cut a file off in the middle."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
