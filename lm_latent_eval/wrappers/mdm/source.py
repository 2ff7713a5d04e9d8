"""What a masked diffusion model is made of, whoever loaded it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from transformers import (
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.networks.masked import Logits, scores_of
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.mdm.lengths import Lengths

SHIFTS = {"LLaDAModelLM": 0, "MDLM": 0, "DreamModel": 1}
"""Architecture of published checkpoints -> ``Source.shift``, as their authors' programs
have it: github.com/ML-GSAI/LLaDA (generate.py), github.com/kuleshov-group/mdlm
(diffusion.py), github.com/DreamLM/Dream (eval/eval.py). Not by ``model_type``: others
have taken those names for networks that are not shifted."""


@runtime_checkable
class WithAdapter(Protocol):
    """A network with an adapter around it, as PEFT makes it."""

    def get_base_model(self) -> PreTrainedModel:
        """Return the network, in which the adapter's layers are."""
        ...


@dataclass(frozen=True)
class Source:
    """A function from tokens to scores with its tokenizer, and what is known of both.

    Attributes:
        logits: The function.
        tokenizer: Whose tokens they are.
        name: What it was loaded by.
        digest: What its numbers depend on.
        max_length: Tokens that it reads at once.
        device: Where tokens go.
        mask: The token that masks; None if neither tokenizer nor configuration say.
        shift: 1 if the scores of a place are those of the token after it; None if
            nothing says.
        start: What texts begin with where the first place has no scores otherwise.
        lengths: How many tokens texts have, if that is known.
        about: What results say of it, as JSON.
    """

    logits: Logits
    tokenizer: PreTrainedTokenizerBase
    name: str
    digest: str
    max_length: int
    device: torch.device
    mask: int | None
    shift: int | None
    start: int | None
    lengths: Lengths | None
    about: dict[str, Any]
    computed_in: str | None = None
    """The floating type, where it is known."""
    rounds: bool = False
    """Whether that is narrower than the network's own (mixed precision)."""

    @classmethod
    def of(cls, network: Network) -> Self:
        """Take a loaded network, and ``lengths.json`` beside it.

        Raises:
            ValueError: If that file is damaged, or the network looks at a time.
        """
        model, tokenizer = network.model, network.tokenizer
        if isinstance(model, WithAdapter):
            model = model.get_base_model()
        config = model.config
        mask = tokenizer.mask_token_id
        shift = getattr(config, "logit_shift", None)
        if shift is None and type(config) in AutoModelForMaskedLM._model_mapping:
            shift = 0  # what transformers means by a masked LM
        return cls(
            scores_of(model, network.mixed_precision),
            tokenizer,
            network.name,
            network.digest,
            network.max_length,
            network.device,
            getattr(config, "mask_token_id", None) if mask is None else mask,
            _published_shift(config) if shift is None else shift,
            network.prefix_token,
            Lengths.load(Path(network.name)),
            network.about,
            str(network.computed_in),
            network.mixed_precision is not None,
        )


def _published_shift(config: PretrainedConfig) -> int | None:
    names = getattr(config, "architectures", None) or []
    return next((SHIFTS[name] for name in names if name in SHIFTS), None)
