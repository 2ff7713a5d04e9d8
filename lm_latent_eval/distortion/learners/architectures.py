"""Untrained learners: configurations of architectures, or pretrained models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import TokenIds
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.networks.causal import check_causal
from lm_latent_eval.networks.network import check_positions
from lm_latent_eval.text import strict_json

_FILLED_IN = ("vocab_size", "bos_token_id", "eos_token_id")


class Size(NamedTuple):
    """An architecture that has a name."""

    config: dict[str, Any]
    learning_rate: float


ARCHITECTURES = {
    "gpt2-small": Size(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}, 5e-5
    ),
    "gpt2-medium": Size(
        {"model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16}, 4e-5
    ),
    "gpt2-large": Size(
        {"model_type": "gpt2", "n_layer": 36, "n_embd": 1280, "n_head": 20}, 3e-5
    ),
    "lstm": Size(
        {
            "model_type": "lstm_causal",
            "num_layers": 2,
            "hidden_size": 2048,
            "embedding_dim": 1024,
        },
        1e-3,
    ),
}
"""LeBrun et al. (2022), section 3.3; they name no learning rate for the LSTM."""


def named_size(name: str) -> Size:
    """Return an architecture by its name.

    Raises:
        ValueError: If there is none.
    """
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"no architecture {name!r}; there is {known}")
    return ARCHITECTURES[name]


def fitting(
    path: str | Path, vocabulary: TokenIds, max_length: int, **how: Any
) -> CausalLanguage:
    """Load a causal LM to train, with the begin and end tokens of the sequences.

    Raises:
        ValueError: If there is no such model, its tokens are others, or it has too few
            positions.
    """
    ends = vocabulary.begin_id, vocabulary.end_id
    found = CausalLanguage.load(path, begin_id=ends[0], end_id=ends[1], **how)
    vocabulary.check(TokenIds(str(path), found.vocab_size, *ends, found.tokenizer))
    check_positions(found.model, str(path), max_length)
    return found


@dataclass(frozen=True)
class Configuration:
    """A model with random weights.

    Attributes:
        config: ``model_type`` as transformers knows it, or ``lstm_causal``, and its
            sizes; the vocabulary is that of the data.
    """

    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        if "model_type" not in self.config:
            raise ValueError(
                'a configuration names its type: {"model_type": "gpt2", ...}'
            )
        if given := sorted({*_FILLED_IN} & {*self.config}):
            raise ValueError(
                f"the configuration sets {', '.join(given)}: leave that to the data"
            )

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Read a JSON file.

        Raises:
            ValueError: If it is no configuration.
        """
        try:
            config = strict_json.read(path)
            if not isinstance(config, dict):
                raise ValueError("expected a JSON object")
            return cls(config)
        except (OSError, ValueError) as err:
            raise ValueError(f"{path}: {err}") from err

    def build(
        self, vocabulary: TokenIds, max_length: int, seed: int
    ) -> PreTrainedModel:
        """Return the untrained model, in float32 on the CPU.

        Raises:
            ValueError: If it cannot learn such sequences.
        """
        ids = (vocabulary.size, vocabulary.begin_id, vocabulary.end_id)
        config = self._config(dict(zip(_FILLED_IN, ids, strict=True)))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        check_positions(model, "the configuration", max_length)
        check_causal(model, "the configuration")
        return model

    def settings(self) -> dict[str, Any]:
        return {"config": dict(self.config)}

    def _config(self, filled_in: Mapping[str, int]) -> PreTrainedConfig:
        sizes = dict(self.config)
        model_type = sizes.pop("model_type")
        try:
            default = AutoConfig.for_model(model_type)
            config = AutoConfig.for_model(model_type, **sizes, **filled_in)
        except (ValueError, TypeError, StrictDataclassError) as err:
            raise ValueError(f"{dict(self.config)} is no configuration: {err}") from err
        # transformers keeps what it does not know, which would train another model.
        known = default.to_dict().keys() | default.attribute_map.keys()
        if unknown := sorted(sizes.keys() - known):
            raise ValueError(f"a {model_type} has no {', '.join(unknown)}")
        return config


@dataclass(frozen=True)
class PretrainedStart:
    """A model that was trained before, with the same tokenizer.

    Attributes:
        path: A directory, or a repository of the hub.
    """

    path: str | Path

    def build(
        self, vocabulary: TokenIds, max_length: int, seed: int
    ) -> PreTrainedModel:
        found = fitting(self.path, vocabulary, max_length, device="cpu")
        model: PreTrainedModel = found.model
        for config in (model.config, model.generation_config):
            config.bos_token_id = vocabulary.begin_id
            config.eos_token_id = vocabulary.end_id
        return model

    def settings(self) -> dict[str, Any]:
        """Return a digest of its weights."""
        found = CausalLanguage.load(self.path, begin_id=0, end_id=0, device="cpu")
        return {"init": found.settings()["digest"]}


Start = Configuration | PretrainedStart
"""Where the training of a learner starts."""
