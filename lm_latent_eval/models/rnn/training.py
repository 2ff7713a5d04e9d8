"""Training of a simple recurrent language model on text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from lm_latent_eval.models.lstm.training import How, train_recurrent
from lm_latent_eval.models.rnn.modeling import (
    RNNConfig,
    RNNLanguageModel,
    class_starts,
)
from lm_latent_eval.training.options import RNNSize


def train_rnn(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    size: RNNSize | None = None,
    **how: Unpack[How],
) -> RNNLanguageModel:
    """Train p and write the checkpoint.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        size: How large the model is.
        **how: See ``How``.
    """
    about = vars(size or RNNSize())

    def new(items: Sequence[Sequence[int]], sizes: dict[str, int]) -> RNNLanguageModel:
        of_model = {**sizes, **about}
        counts = Counter(i for ids in items for i in ids)
        frequencies = [counts[i] for i in range(sizes["vocab_size"])]
        starts = class_starts(frequencies, of_model.pop("num_classes"))
        return RNNLanguageModel(RNNConfig(class_starts=starts, **of_model))

    return train_recurrent(new, texts, dev, directory, about, **how)
