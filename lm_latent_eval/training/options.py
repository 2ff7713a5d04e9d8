"""Training options; imports nothing heavy, so ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def _check(options: object, counts: Sequence[str], positive: Sequence[str]) -> None:
    """Refuse counts below 1 and other values out of (0, LARGEST]."""
    for name in counts:
        if getattr(options, name) < 1:
            raise ValueError(f"{name}={getattr(options, name)}: expected at least 1")
    for name in positive:
        value = getattr(options, name)
        if not 0 < value <= LARGEST:
            raise ValueError(
                f"{name}={value}: expected more than 0 and at most {LARGEST:g}"
            )


LARGEST = 1e30
"""Largest number that is safe in float32."""
MOST_SEED = 9 * 10**12
"""Largest seed: torch takes a million times as much, and each epoch has its own."""


@dataclass(frozen=True)
class Options:
    """Options of training.

    Attributes:
        epochs: Largest number of epochs.
        batch_size: Number of texts an update.
        learning_rate: Initial learning rate of Adam; halved after an epoch that is no
            better.
        patience: Stop a part after this many epochs without a better one.
        clip: Largest norm of a gradient.
        seed: Seed of the initial weights, the order of texts and dropout.
        device: Device, such as ``cuda``; weights begin as on the CPU, and an
            interrupted run may continue on another device.
    """

    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 2e-3
    patience: int = 3
    clip: float = 1.0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check(self, ("epochs", "batch_size", "patience"), ("learning_rate",))
        if not self.clip > 0:  # infinite: gradients stay as they are
            raise ValueError(f"clip={self.clip}: expected more than 0")
        if abs(self.seed) > MOST_SEED:
            raise ValueError(f"seed={self.seed}: expected {-MOST_SEED} to {MOST_SEED}")


@dataclass(frozen=True)
class KGLMSize:
    """Size of a KGLM; see ``KGLMConfig``.

    Attributes:
        token_embedding_dim: Size of word embeddings and of the text part of the hidden
            state.
        entity_embedding_dim: Size of the embeddings of entities and relations.
        hidden_size: Size of the inner recurrent layers.
        num_layers: Number of recurrent layers.
        cutoff: An entity stays a candidate parent this many tokens after its mention.
        max_aliases: Largest number of names kept of an entity.
        max_alias_words: Largest number of words kept of a name.
        dropout: Share of inputs dropped in training.
    """

    token_embedding_dim: int = 128
    entity_embedding_dim: int = 32
    hidden_size: int = 192
    num_layers: int = 2
    cutoff: int = 30
    max_aliases: int = 4
    max_alias_words: int = 8
    dropout: float = 0.4

    def __post_init__(self) -> None:
        _check(self, ("max_aliases", "max_alias_words"), ())


@dataclass(frozen=True)
class RecurrentSize:
    """Size of a model of words with recurrent layers.

    Attributes:
        embedding_dim: Size of word embeddings and of the top recurrent layer.
        hidden_size: Size of the recurrent layers below it, if any.
        num_layers: Number of recurrent layers.
        dropout: Share of inputs dropped in training.
    """

    embedding_dim: int = 128
    hidden_size: int = 192
    num_layers: int = 2
    dropout: float = 0.4


@dataclass(frozen=True)
class LRLMSize(RecurrentSize):
    """Size of an LRLM; see ``RelationConfig``.

    Attributes:
        embedding_dim: Size of word embeddings.
        hidden_size: Size of every recurrent layer.
        fact_dim: Size of relations and of objects; a fact has both.
        num_pieces: Rows of the table of letter n-grams that encode names.
        max_aliases: Largest number of names kept of an entity.
        max_alias_words: Largest number of words kept of a name.
    """

    fact_dim: int = 64
    num_pieces: int = 8192
    max_aliases: int = 4
    max_alias_words: int = 8

    def __post_init__(self) -> None:
        _check(self, ("num_pieces", "max_aliases", "max_alias_words"), ())


@dataclass(frozen=True)
class NKLMSize(LRLMSize):
    """Size of an NKLM; see ``NKLMConfig``."""


@dataclass(frozen=True)
class LDAFit:
    """Topics and options of tomotopy's sampler.

    Attributes:
        num_topics: Number of topics.
        iterations: Sweeps of the sampler; alpha is fitted every tenth.
        alpha: Initial parameter of the Dirichlet distribution of proportions.
        eta: Concentration of the Dirichlet prior of each topic's words.
        seed: Seed of the sampler, which runs on one core.
    """

    num_topics: int = 20
    iterations: int = 1000
    alpha: float = 0.1
    eta: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self, ("num_topics", "iterations"), ("alpha", "eta"))
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: expected a number of 64 bits")


@dataclass(frozen=True)
class LSTMSize(RecurrentSize):
    """Size of a recurrent LM; see ``LSTMConfig``.

    Attributes:
        cell: Kind of the layers: ``lstm``, or ``rnn`` for Elman's simple network.
    """

    cell: str = "lstm"

    def __post_init__(self) -> None:
        if self.cell not in ("lstm", "rnn"):
            raise ValueError(f"cell={self.cell}: expected lstm or rnn")


@dataclass(frozen=True)
class SRNNSize:
    """Size of a sentence-level RNN; see ``SRNNConfig``.

    Attributes:
        hidden_size: Size of words and of phrases.
    """

    hidden_size: int = 75


@dataclass(frozen=True)
class MarginObjective:
    """Objective of a sentence-level RNN.

    Attributes:
        distortion: Level of the noise that sentences are told from, x_S = x_T.
        l2: Weight of half the squared norm of all parameters, a sentence.
    """

    distortion: float = 0.1
    l2: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.distortion <= 0.5:
            raise ValueError(
                f"distortion={self.distortion}: expected more than 0 and at most 0.5"
            )
        if not 0 <= self.l2 <= LARGEST:
            raise ValueError(f"l2={self.l2}: expected 0 to {LARGEST:g}")


@dataclass(frozen=True)
class EntityNLMSize(RecurrentSize):
    """Size of an EntityNLM; see ``EntityNLMConfig``.

    Attributes:
        embedding_dim: Size of words, of the top recurrent layer and of entities.
        max_mention_length: Largest number of words of a mention.
    """

    max_mention_length: int = 20


@dataclass(frozen=True)
class RNNGSize:
    """Size of an RNNG; see ``RNNGConfig``.

    Attributes:
        hidden_size: Size of embeddings, stack and composition.
        num_layers: Number of recurrent layers of the stack.
        proposal_size: Size of each direction of the proposal's LSTM.
        max_words: Length of the longest sentence that the proposal can read.
        dropout: Share of inputs dropped in training.
    """

    hidden_size: int = 128
    num_layers: int = 2
    proposal_size: int = 128
    max_words: int = 248
    dropout: float = 0.4
