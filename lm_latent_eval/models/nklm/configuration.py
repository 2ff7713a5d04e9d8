"""What an NKLM checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_latent_eval.models.lrlm.configuration import RULES, RelationConfig
from lm_latent_eval.values import Flag, Rules, Whole


class NKLMConfig(RelationConfig):
    """Configuration of a neural knowledge language model.

    Args:
        num_positions: Words of a name that can be copied.
        position_dim: Of the embeddings of positions.
        copy_hidden: Inner size of the map that decides whether to copy.
        position_hidden: Inner size of the map to positions.
        only_possible: Exclude choices that no word can follow, so that p is normalised.
            Original checkpoints were trained with them.
        fields: Those of ``RelationConfig``.
    """

    model_type = "nklm"
    rules: ClassVar[Rules] = {
        **RULES,
        "fact_hidden": Whole(1),
        "num_positions": Whole(1),
        "position_dim": Whole(1),
        "copy_hidden": Whole(1),
        "position_hidden": Whole(1),
        "only_possible": Flag(),
    }

    def __init__(
        self,
        *,
        num_positions: int = 8,
        position_dim: int = 16,
        copy_hidden: int = 128,
        position_hidden: int = 32,
        fact_hidden: int = 128,
        only_possible: bool = True,
        **fields: Any,
    ) -> None:
        """Store the fields."""
        self.num_positions = num_positions
        self.position_dim = position_dim
        self.copy_hidden = copy_hidden
        self.position_hidden = position_hidden
        self.only_possible = only_possible
        super().__init__(fact_hidden=fact_hidden, **fields)
