"""Configuration of EntityNLM."""

from __future__ import annotations

from lm_latent_eval.models.pretrained import TrainedConfig, value
from lm_latent_eval.values import Each, Flag, OneOf, Whole

TRAINED = ["peeking", "nonpeeking"]


class EntityNLMConfig(TrainedConfig):
    """Configuration of an EntityNLM and its proposals.

    Args:
        embedding_dim: D, size of words, of the top recurrent layer and of entities.
        hidden_size: Size of the inner recurrent layers.
        num_layers: Number of recurrent layers.
        max_mention_length: M; a mention has 1 .. M words.
        tie_weights: Share word embeddings with the output layer.
        proposals: Names of trained proposals, a subset of ``TRAINED``.
    """

    model_type = "entitynlm"
    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(192, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    max_mention_length: int = value(20, Whole(1))
    tie_weights: bool = value(True, Flag())
    proposals: list[str] = value(TRAINED, Each(OneOf(*TRAINED)))
