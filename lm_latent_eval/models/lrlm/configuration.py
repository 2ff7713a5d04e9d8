"""What an LRLM checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_latent_eval.models.pretrained import CheckedConfig
from lm_latent_eval.values import Each, Flag, OneOf, Rules, Share, Whole

RULES: Rules = {
    "vocab_size": Whole(4),
    "num_words": Whole("vocab_size"),
    "num_topics": Whole(1),
    "num_facts": Whole(1),
    "num_namings": Whole(1),
    "num_aliases": Whole(1),
    "num_relations": Whole(1),
    "num_objects": Whole(0),
    "num_pieces": Whole(0),
    "embedding_dim": Whole(1),
    "hidden_size": Whole(1),
    "num_layers": Whole(1, 1000),
    "predictor_dim": Whole(1),
    "activation": OneOf("none", "relu", "tanh", "sigmoid"),
    "cutoffs": Each(Whole(1, below="vocab_size")),
    "tie_weights": Flag(),
    "fact_dim": Whole(1),
    "fact_hidden": Whole(0),
    "alias_dim": Whole(1),
    "knowledge_vector": Flag(),
    "oracle": Flag(),
    "never_uttered": Each(Whole(0, below="vocab_size")),
    "dropout": Share(),
    "num_unknown_types": Whole(0),
}


class RelationConfig(CheckedConfig):
    """What the relation models' configurations share.

    Args:
        vocab_size: V, words the model can utter (padding, unknown, start and end too).
        num_words: V plus the words that occur only in aliases and can only be copied.
        num_topics: Of ``topics.safetensors``.
        num_facts: Of ``topics.safetensors``.
        num_namings: Of ``topics.safetensors``.
        num_aliases: Of ``topics.safetensors``.
        num_relations: Rows of the relation table.
        num_objects: Rows of the table of objects; 0 encodes objects by their names.
        num_pieces: Rows of the table of letter n-grams that encode names; 0 if aliases
            have vectors of their own (as in originals).
        embedding_dim: Of words.
        hidden_size: Of the recurrent layers.
        num_layers: Recurrent layers.
        predictor_dim: Of the layer that words are predicted from.
        activation: Of that layer.
        cutoffs: Where the clusters of an adaptive softmax begin; none for a plain one.
        tie_weights: Share word embeddings with the output layer.
        fact_dim: Of relations and of objects; a fact has both.
        fact_hidden: Inner size of the map from states to facts; 0 is a linear map.
        alias_dim: Of alias vectors.
        knowledge_vector: Predict from the mean of a topic's facts as well (originals).
        oracle: Charge nothing for which alias of a fact is used (originals).
        never_uttered: Words excluded from prediction (padding and start).
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text; 0: not known.
    """

    rules: ClassVar[Rules] = RULES

    def __init__(
        self,
        *,
        vocab_size: int = 4,
        num_words: int | None = None,
        num_topics: int = 1,
        num_facts: int = 1,
        num_namings: int = 1,
        num_aliases: int = 1,
        num_relations: int = 1,
        num_objects: int = 0,
        num_pieces: int = 4096,
        embedding_dim: int = 128,
        hidden_size: int = 192,
        num_layers: int = 2,
        predictor_dim: int = 128,
        activation: str = "tanh",
        cutoffs: list[int] | None = None,
        tie_weights: bool = True,
        fact_dim: int = 64,
        fact_hidden: int = 0,
        alias_dim: int = 64,
        knowledge_vector: bool = False,
        oracle: bool = False,
        never_uttered: list[int] | None = None,
        dropout: float = 0.0,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.num_topics = num_topics
        self.num_facts = num_facts
        self.num_namings = num_namings
        self.num_aliases = num_aliases
        self.num_relations = num_relations
        self.num_objects = num_objects
        self.num_pieces = num_pieces
        self.embedding_dim = embedding_dim
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.predictor_dim = predictor_dim
        self.activation = activation
        self.cutoffs = [] if cutoffs is None else cutoffs
        self.tie_weights = tie_weights
        self.fact_dim = fact_dim
        self.fact_hidden = fact_hidden
        self.alias_dim = alias_dim
        self.knowledge_vector = knowledge_vector
        self.oracle = oracle
        self.never_uttered = [0, 2] if never_uttered is None else never_uttered
        self.dropout = dropout
        self.num_unknown_types = num_unknown_types
        super().__init__(**kwargs)

    @property
    def full_fact_dim(self) -> int:
        """Of a relation and an object together."""
        return 2 * self.fact_dim


class LRLMConfig(RelationConfig):
    """Configuration of a latent relation language model.

    Args:
        trunk: ``lstm``, or ``transformer_xl``, of which the rest speaks.
        num_heads: Of attention.
        head_dim: Of a head.
        inner_dim: Of the feed-forward parts.
        chunk_size: Words that are read at a time.
        memory_size: Words before them that are remembered.
        pre_norm: Norms stand before each part, not after it.
        memory_rule: ``clean``, or ``published`` as original checkpoints need.
        fields: Those of ``RelationConfig``.
    """

    model_type = "lrlm"
    rules: ClassVar[Rules] = {
        **RULES,
        "trunk": OneOf("lstm", "transformer_xl"),
        "num_heads": Whole(1),
        "head_dim": Whole(1),
        "inner_dim": Whole(1),
        "chunk_size": Whole(1),
        "memory_size": Whole(0),
        "pre_norm": Flag(),
        "memory_rule": OneOf("clean", "published"),
    }

    def __init__(
        self,
        *,
        trunk: str = "lstm",
        num_heads: int = 4,
        head_dim: int = 32,
        inner_dim: int = 256,
        chunk_size: int = 150,
        memory_size: int = 150,
        pre_norm: bool = False,
        memory_rule: str = "clean",
        **fields: Any,
    ) -> None:
        """Store the fields."""
        self.trunk = trunk
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.inner_dim = inner_dim
        self.chunk_size = chunk_size
        self.memory_size = memory_size
        self.pre_norm = pre_norm
        self.memory_rule = memory_rule
        super().__init__(**fields)
