"""Configuration of KGLM."""

from __future__ import annotations

from typing import Literal

from lm_latent_eval.models.pretrained import TrainedConfig, value
from lm_latent_eval.values import Each, Flag, OneOf, Whole

CopyScores = Literal["transposed", "reshaped"]
TRAINED = ["peeking", "nonpeeking", "smoothing"]
MOST_CUTOFF = 1000
"""Tokens. Every decision looks at the nodes of as many, so memory grows with it."""


class KGLMConfig(TrainedConfig):
    """Configuration of a knowledge graph language model and its proposals.

    Args:
        num_entities: E, rows of the entity table, "no entity" included.
        num_relations: Rows of the relation table.
        token_embedding_dim: Also the size of the text part of the hidden state.
        entity_embedding_dim: Also of relations.
        hidden_size: Of the inner recurrent layers.
        num_layers: Recurrent layers.
        cutoff: An entity stays a candidate parent this many tokens after its mention.
        tie_weights: Share token embeddings with the output layer and, without a
            shortlist, entity embeddings with the new-entity layer.
        entity_shortlist: Score new entities by their own embeddings, over a list that
            may come with the text (original checkpoints), rather than by a layer.
        special_entities: Rows at the start of the entity table that are never
            introduced (no entity; in originals also unknown, date, quantity).
        only_possible: Exclude choices that cannot lead anywhere, so that p is
            normalised. Original checkpoints were trained with them.
        copy_scores: ``transposed``, or ``reshaped`` as original checkpoints need.
        max_aliases: Surface forms kept a node.
        max_alias_words: Words kept a surface form.
        proposals: The trained proposals, of ``TRAINED``.
    """

    model_type = "kglm"
    num_entities: int = value(1, Whole(1))
    num_relations: int = value(1, Whole(1))
    token_embedding_dim: int = value(128, Whole(1))
    entity_embedding_dim: int = value(64, Whole(1))
    hidden_size: int = value(256, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    cutoff: int = value(30, Whole(1, MOST_CUTOFF))
    tie_weights: bool = value(True, Flag())
    entity_shortlist: bool = value(False, Flag())
    special_entities: int = value(1, Whole(1, "num_entities"))
    only_possible: bool = value(True, Flag())
    copy_scores: CopyScores = value("transposed", OneOf("transposed", "reshaped"))
    max_aliases: int = value(4, Whole(1))
    max_alias_words: int = value(8, Whole(1))
    proposals: list[str] = value(TRAINED, Each(OneOf(*TRAINED)))
