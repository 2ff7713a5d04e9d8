"""What our models add to those of transformers: weights in memory of their own."""

from __future__ import annotations

from abc import ABC
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel


class OwnWeights(PreTrainedModel, ABC):
    """A pre-trained model that keeps no file mapped.

    transformers leaves weights where the file has them: gone when it is cut short or
    written over, and at an alignment that the length of its header decides, which
    libraries of linear algebra may round by. A copy lies as the weights of a new model
    do, and as those that ``checkpoint.load`` reads.
    """

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, path: str | Path, *args: Any, **kwargs: Any
    ) -> Self:
        """Read configuration and weights from a directory or the hub."""
        loaded: Any = super().from_pretrained(path, *args, **kwargs)
        model = loaded[0] if kwargs.get("output_loading_info") else loaded
        model._apply(torch.clone)
        return loaded  # type: ignore[no-any-return]
