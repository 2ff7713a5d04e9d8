"""Configuration of LRLM."""

from __future__ import annotations

from typing import Any

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
    """Configuration of a latent relation language model."""

    model_type = "lrlm"

    # transformers gives a class without one of its own that of a dataclass.
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a file; one of version 0.3 has values of a transformer as well.

        Raises:
            ValueError: If its model has one, or a value is not what it may be.
        """
        if config_dict.get("trunk", "lstm") != "lstm":
            raise ValueError(
                f"trunk is {config_dict['trunk']!r}: only version 0.3 reads such models"
            )
        known = {n: v for n, v in config_dict.items() if n not in OF_TRANSFORMERS}
        return super().from_dict(known, **kwargs)


OF_TRANSFORMERS = {
    "trunk",
    "num_heads",
    "head_dim",
    "inner_dim",
    "chunk_size",
    "memory_size",
    "pre_norm",
    "memory_rule",
}
"""Values in files of version 0.3 that say how large a Transformer-XL is."""
