"""What a masked diffusion model is made of, whoever loaded it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.wrappers.mdm.denoiser import Logits
from lm_latent_eval.wrappers.mdm.lengths import Lengths
from lm_latent_eval.wrappers.network import Network

SHIFTS = {"llada": 0, "mdlm": 0, "Dream": 1}
"""``model_type`` of published checkpoints -> ``Source.shift`` (LLaDA: Nie et al., 2025;
MDLM: Sahoo et al., 2024; Dream: Ye et al., 2025)."""


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
    lengths: Lengths | None
    about: dict[str, Any]

    @classmethod
    def of(cls, network: Network) -> Self:
        """Take a loaded network, and ``lengths.json`` beside it.

        Raises:
            ValueError: If that file is damaged.
        """
        model, tokenizer = network.model, network.tokenizer
        config = model.config
        mask = tokenizer.mask_token_id
        shift = getattr(config, "logit_shift", None)
        if shift is None and type(config) in AutoModelForMaskedLM._model_mapping:
            shift = 0  # what transformers means by a masked LM
        return cls(
            _logits_of(model),
            tokenizer,
            network.name,
            network.digest,
            network.max_length,
            network.device,
            getattr(config, "mask_token_id", None) if mask is None else mask,
            SHIFTS.get(str(config.model_type)) if shift is None else shift,
            Lengths.load(Path(network.name)),
            network.about,
        )


def _logits_of(model: PreTrainedModel) -> Logits:
    """Call a network; one that is told a time is told the same one of all texts.

    What an order needs, p(x_i | revealed), is that of no time (Ou et al., 2024), and
    published MDLM checkpoints do not look at it.
    """
    timed = "timesteps" in inspect.signature(model.forward).parameters

    def logits(tokens: Tensor) -> Tensor:
        time = {"timesteps": torch.zeros(len(tokens), device=tokens.device)}
        found: Tensor = model(input_ids=tokens, **(time if timed else {})).logits
        return found

    return logits
