"""``lm_eval --model latent_mdm``: masked diffusion models."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_eval.models.huggingface import HFLM
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from lm_latent_eval.harness.wrappers.base import Wrapper
from lm_latent_eval.networks.network import configured_length
from lm_latent_eval.wrappers.mdm.source import refuse_uniform


class MaskedLM(HFLM):
    """lm-eval's loader, for networks that predict masked tokens."""

    @property
    def max_length(self) -> int:
        """Largest number of tokens read at once: the argument, else the network's.

        lm-eval knows neither LLaDA's name for it nor that RoBERTa's positions begin
        after that of padding.
        """
        return self._max_length or configured_length(self.model, self.tokenizer)

    def _get_backend(self, config: Any, **_: Any) -> None:
        """Choose a class of transformers: a masked LM, or that of own code."""
        self.backend = "causal"  # one of lm-eval's two; not used here
        refuse_uniform(config, config.name_or_path)
        own = getattr(config, "auto_map", None) or {}
        auto_class: Any
        if type(config) in AutoModelForMaskedLM._model_mapping or (
            "AutoModelForMaskedLM" in own
        ):
            auto_class = AutoModelForMaskedLM
        elif "AutoModelForCausalLM" in own:  # LLaDA calls itself that, and is none
            auto_class = AutoModelForCausalLM
        elif "AutoModel" in own:
            auto_class = AutoModel
        else:
            raise ValueError(
                f"a {config.model_type} is a causal model, or another that predicts "
                "no masked tokens: latent_mdm takes AutoModelForMaskedLM networks and "
                "diffusion models with code of their own (trust_remote_code=True)"
            )
        self.AUTO_MODEL_CLASS = auto_class


class BlockCausalLM(MaskedLM):
    """Loader of decoders that are read with attention over blocks."""

    def _get_backend(self, config: Any, **more: Any) -> None:
        if type(config) in AutoModelForCausalLM._model_mapping:
            self.backend, self.AUTO_MODEL_CLASS = "causal", AutoModelForCausalLM
        else:
            super()._get_backend(config, **more)


class LatentMDM(Wrapper):
    """``latent_mdm``: a masked diffusion model, whose latent is its order."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        if arguments.get("attention") == "block_causal":
            self.loader = BlockCausalLM  # type: ignore[misc]
        super().__init__(*args, **arguments)

    model_name = "mdm"
    loader = MaskedLM
    reads, such_as = "AutoModelForMaskedLM", "BERT or LLaDA"
    mixes_precision: ClassVar = {
        None: ("float16", "bfloat16"),
        "elbo": ("float16", "bfloat16"),
        "is": ("float16", "bfloat16"),
    }
