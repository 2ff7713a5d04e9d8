"""Configuration of LRLM."""

from __future__ import annotations

from lm_latent_eval.models.pretrained import TrainedConfig, value
from lm_latent_eval.values import Each, Flag, OneOf, Whole


class RelationConfig(TrainedConfig):
    """Base class of the configurations of relation models.

    Args:
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
    """

    num_topics: int = value(1, Whole(1))
    num_facts: int = value(1, Whole(1))
    num_namings: int = value(1, Whole(1))
    num_aliases: int = value(1, Whole(1))
    num_relations: int = value(1, Whole(1))
    num_objects: int = value(0, Whole(0))
    num_pieces: int = value(4096, Whole(0))
    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(192, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    predictor_dim: int = value(128, Whole(1))
    activation: str = value("tanh", OneOf("none", "relu", "tanh", "sigmoid"))
    cutoffs: list[int] = value([], Each(Whole(1, below="vocab_size")))
    tie_weights: bool = value(True, Flag())
    fact_dim: int = value(64, Whole(1))
    fact_hidden: int = value(0, Whole(0))
    alias_dim: int = value(64, Whole(1))
    knowledge_vector: bool = value(False, Flag())
    oracle: bool = value(False, Flag())

    @property
    def full_fact_dim(self) -> int:
        """Of a relation and an object together."""
        return 2 * self.fact_dim


class LRLMConfig(RelationConfig):
    """Configuration of a latent relation language model: a ``RelationConfig`` and more.

    Args:
        trunk: ``lstm``, or ``transformer_xl``, of which the rest speaks.
        num_heads: Of attention.
        head_dim: Of a head.
        inner_dim: Of the feed-forward parts.
        chunk_size: Words that are read at a time.
        memory_size: Words before them that are remembered.
        pre_norm: Norms stand before each part, not after it.
        memory_rule: ``clean``, or ``published`` as original checkpoints need.
    """

    model_type = "lrlm"
    trunk: str = value("lstm", OneOf("lstm", "transformer_xl"))
    num_heads: int = value(4, Whole(1))
    head_dim: int = value(32, Whole(1))
    inner_dim: int = value(256, Whole(1))
    chunk_size: int = value(150, Whole(1))
    memory_size: int = value(150, Whole(0))
    pre_norm: bool = value(False, Flag())
    memory_rule: str = value("clean", OneOf("clean", "published"))
