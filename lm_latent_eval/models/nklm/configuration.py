"""Configuration of NKLM."""

from __future__ import annotations

from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.models.pretrained import value
from lm_latent_eval.values import Flag, Whole


class NKLMConfig(RelationConfig):
    """Configuration of a neural knowledge LM: a ``RelationConfig`` and more.

    Args:
        num_positions: Number of words of a name that can be copied.
        position_dim: Size of the embeddings of positions.
        copy_hidden: Inner size of the map that decides whether to copy.
        position_hidden: Inner size of the map to positions.
        only_possible: Exclude choices without a next word, so that p is normalised.
            Original checkpoints were trained with them.
    """

    model_type = "nklm"
    fact_hidden: int = value(128, Whole(1))
    num_positions: int = value(8, Whole(1))
    position_dim: int = value(16, Whole(1))
    copy_hidden: int = value(128, Whole(1))
    position_hidden: int = value(32, Whole(1))
    only_possible: bool = value(True, Flag())
