r"""Answers from retrieved documents: which document is latent (RAG-Sequence).

.. math:: p(y \mid x) = \sum_d p(d \mid x) \prod_t p(y_t \mid d)

A document is likely if it has the words of the question x, rare ones above all, and
then it writes y: each word is the end, a word of the document, or any word. The sum is
over all documents, so it is exact where they are no more than the samples asked for.

Source: Lewis et al. (2020), "Retrieval-augmented generation", section 2.1. Departures:
the retriever counts words and the generator is a unigram model, to be short.

``Generator`` is p(y | d) alone, given the text of a document: with the retriever of
``latent_rag.documents``, ``latent_mixture`` makes the same sum of it (mixture.yaml).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.extend import (
    END,
    UNKNOWN,
    Step,
    StepLM,
    TokenBatch,
    Whole,
    WordsConfig,
    value,
    widened,
)


class RAGConfig(WordsConfig):
    """Words, and documents."""

    model_type = "rag"
    num_documents: int = value(1, Whole(1))


class Read(NamedTuple):
    """What no choice of a document changes."""

    log_d: Tensor
    """log p(d | x), (B, D)."""
    log_word: Tensor
    """log p(y_t | d), (B, T, D)."""
    log_words: Tensor
    """log p(y | d) of every word, (D, V)."""


class RAG(StepLM):
    """p(y, d | x): the document is chosen with the first word, and stays."""

    config_class = RAGConfig
    config: RAGConfig
    base_model_prefix = "rag"
    main_input_name = "inputs"
    conditional_on = "the question"

    def __init__(self, config: RAGConfig) -> None:
        """Start without a word in any document."""
        super().__init__(config)
        size = config.num_documents, config.vocab_size
        self.register_buffer("counts", torch.zeros(size))
        self.sources = nn.Parameter(torch.tensor([-1.0, 2.0, 0.0]))
        self.post_init()

    def retrieve(self, question: TokenBatch) -> Tensor:
        """Return log p(d | x), (B, D)."""
        there = widened(self.counts > 0)
        rarity = torch.log1p(len(there) / (1 + there.sum(0)))
        words, _ = question.uttered(self.config.vocab_size)
        score = (there * rarity).T[words] * question.inside[..., None]
        return score.sum(1).log_softmax(-1)

    def write(self, counts: Tensor) -> Tensor:
        """Return log p(y | d) of every word, documents' counts of words, (D, V)."""
        end, of_document, any_word = widened(self.sources).softmax(0)
        number = self.config.vocab_size - 4
        words = torch.zeros_like(widened(counts))
        words[:, [UNKNOWN, *range(4, 4 + number)]] = any_word / (number + 1)
        counts = widened(counts) + 1e-12
        share = F.pad(counts[:, 4:], (4, 0))
        words = words + of_document * share / share.sum(1, keepdim=True)
        words[:, END] = end
        return words.log()

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Read:
        """Retrieve, and look up what each document makes of the words."""
        log_words = self.write(self.counts)
        words, cost = batch.uttered(self.config.vocab_size)
        log_word = log_words.T[words] + cost[..., None]
        return Read(self.retrieve(batch.given), log_word, log_words)

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return that no document has been chosen."""
        return (torch.full_like(batch.length[:, None], -1),)

    def log_choice(self, read: Read, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p(d | x, what was chosen), (B, K, D)."""
        (chosen,) = state
        other = torch.arange(read.log_d.shape[-1], device=chosen.device)
        other = other != chosen[..., None]
        stays = torch.zeros_like(read.log_d[:, None]).masked_fill(other, -torch.inf)
        return torch.where(chosen[..., None] < 0, read.log_d[:, None], stays)

    def step(self, read: Read, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the documents: all before the first word, then the one chosen."""
        return Step(self.log_choice(read, state), read.log_word[:, None, t])

    def take(
        self, read: Read, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Return the document."""
        return (choice,)

    def log_words(self, read: Read, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p of every next word, (B, K, number of words)."""
        log_d = self.log_choice(read, state)
        return (log_d[..., None] + read.log_words).logsumexp(-2)


class GeneratorConfig(RAGConfig):
    """Words; the document is given."""

    model_type = "rag_generator"


class Generator(RAG):
    """p(y | d): the generator, which reads its only document as what it is given."""

    config_class = GeneratorConfig
    conditional_on = "the document"

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Read:
        """Count the words of each document, and look up what it makes of the words."""
        given, _ = batch.given.uttered(self.config.vocab_size)
        there = batch.given.inside.double()
        counts = there.new_zeros(len(given), self.config.vocab_size)
        log_words = self.write(counts.scatter_add(1, given, there))
        words, cost = batch.uttered(self.config.vocab_size)
        log_word = log_words.gather(1, words) + cost
        log_d = log_words.new_zeros(len(given), 1)
        return Read(log_d, log_word[..., None], log_words[:, None, None])
