"""Configuration of LRLM."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.models.pretrained import TrainedConfig, value
from lm_latent_eval.values import Each, Flag, OneOf, Whole


class RelationConfig(TrainedConfig):
    """Base class of the configurations of relation models.

    Args:
        num_topics: Number of topics in ``topics.safetensors``.
        num_facts: Number of facts there.
        num_namings: Number of namings there.
        num_aliases: Number of aliases there.
        num_relations: Rows of the relation table.
        num_objects: Rows of the table of objects; 0 encodes objects by their names.
        num_pieces: Rows of the table of letter n-grams that encode names; 0 if aliases
            have vectors of their own (as in originals).
        embedding_dim: Size of word embeddings.
        hidden_size: Size of the recurrent layers.
        num_layers: Number of recurrent layers.
        predictor_dim: Size of the layer that words are predicted from.
        activation: Activation of that layer.
        cutoffs: First words of the clusters of an adaptive softmax; empty for a plain
            one.
        tie_weights: Share word embeddings with the output layer.
        fact_dim: Size of relations and of objects; a fact has both.
        fact_hidden: Inner size of the map from states to facts; 0 is a linear map.
        alias_dim: Size of alias vectors.
        knowledge_vector: Predict from the mean of a topic's facts as well (originals).
        oracle: Give every alias of a fact probability 1 (originals).
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
        return 2 * self.fact_dim


class LRLMConfig(RelationConfig):
    """Configuration of a latent relation language model."""

    model_type = "lrlm"

    # transformers gives a class without one of its own that of a dataclass.
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
