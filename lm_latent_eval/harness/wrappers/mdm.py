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
        """Tokens that it reads at once: those given, else those of the network.

        lm-eval knows neither the name that LLaDA's configuration has for them nor that
        RoBERTa's positions begin after that of padding.
        """
        return self._max_length or configured_length(self.model, self.tokenizer)

    def _get_backend(self, config: Any, **_: Any) -> None:
        """Choose a class of transformers: a masked LM, or what own code is for."""
        self.backend = "causal"  # one of lm-eval's two; not used here
        refuse_uniform(config, config.name_or_path)
        own = getattr(config, "auto_map", None) or {}
        found: Any
        if type(config) in AutoModelForMaskedLM._model_mapping or (
            "AutoModelForMaskedLM" in own
        ):
            found = AutoModelForMaskedLM
        elif "AutoModelForCausalLM" in own:  # LLaDA calls itself that, and is none
            found = AutoModelForCausalLM
        elif "AutoModel" in own:
            found = AutoModel
        else:
            raise ValueError(
                f"a {config.model_type} is a causal model, or another that predicts "
                "no masked tokens: latent_mdm takes AutoModelForMaskedLM networks and "
                "diffusion models with code of their own (trust_remote_code=True)"
            )
        self.AUTO_MODEL_CLASS = found


class BlockCausalLM(MaskedLM):
    """The same, of decoders that are read with attention over blocks."""

    def _get_backend(self, config: Any, **more: Any) -> None:
        """Take causal networks of transformers as well: it is said how to read them."""
        if type(config) in AutoModelForCausalLM._model_mapping:
            self.backend, self.AUTO_MODEL_CLASS = "causal", AutoModelForCausalLM
        else:
            super()._get_backend(config, **more)


class LatentMDM(Wrapper):
    """``latent_mdm``: a masked diffusion model, whose latent is its order."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        """Load the network by the attention that it is to be read with."""
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
