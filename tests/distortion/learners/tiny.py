"""Corpora and models of a small language, for trainings of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.architectures import Configuration
from tests.distortion.languages.tiny import regular

MAX_LENGTH = 9
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 2,
    "n_positions": MAX_LENGTH,
}
LSTM = {
    "model_type": "lstm_causal",
    "num_layers": 2,
    "hidden_size": 8,
    "embedding_dim": 6,
}


def draw(directory: Path, num: int, first: int = 0, **settings: Any) -> Corpus:
    settings = {"max_length": MAX_LENGTH, "shard_size": 17} | settings
    return Corpus.draw(regular(), directory, num, first=first, quiet=True, **settings)


class Double(Configuration):
    """In float64, so that rounding hides nothing."""

    def build(self, *args: Any) -> Any:
        return super().build(*args).double()
