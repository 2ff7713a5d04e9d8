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

from lm_latent_eval.networks.block_causal import BlockCausal
from lm_latent_eval.networks.masked import Logits, scores_of
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.mdm.lengths import Lengths

SHIFTS = {
    "LLaDAModelLM": 0,
    "MDLM": 0,
    "DreamModel": 1,
    "BD3LM": 0,
    "SDARForCausalLM": 0,
    "SDARMoeForCausalLM": 0,
    "LLaDA2MoeModelLM": 0,
}
"""Architecture of published checkpoints -> ``Source.shift``, as their authors' programs
have it: github.com/ML-GSAI/LLaDA (generate.py), github.com/kuleshov-group/mdlm
(diffusion.py) and bd3lms (models/dit.py), github.com/DreamLM/Dream (eval/eval.py),
github.com/JetAstra/SDAR (generate.py). Not by ``model_type``: others have taken those
names for networks that are not shifted."""
MASKS_ITSELF = ("BD3LM",)
"""Architectures that mask their attention over blocks themselves."""
STORES_ASKED = ("SDARForCausalLM", "SDARMoeForCausalLM")
"""Architectures that keep keys and values where they are asked to (``store_kv``)."""
BLOCK_CAUSAL = (*MASKS_ITSELF, *STORES_ASKED, "LLaDA2MoeModelLM")
"""Architectures whose attention is causal over blocks."""
BLOCK_LENGTHS = ("block_size", "block_length")
"""What configurations call the tokens of a block."""
UNIFORM = ("diffusion_gemma", "udlm")
"""Types of models that replace tokens by others instead of masking them."""


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
    attention: str = "bidirectional"
    """Or ``block_causal``."""
    block_length: int | None = None
    """Tokens of a block, if the configuration says."""
    model: PreTrainedModel | None = None
    """The network, if there is one, to be read block by block."""

    def reading(self, attention: str, block_length: int | None) -> Logits:
        """Return the function by which a network of that attention is read.

        Raises:
            ValueError: If it masks its attention itself, over other blocks.
        """
        if attention == "bidirectional" or block_length is None or self.model is None:
            return self.logits
        names = _architectures(self.model.config)
        if not {*names}.isdisjoint(MASKS_ITSELF):
            if self.block_length not in (None, block_length):
                raise ValueError(
                    f"block_length={block_length}: {self.name} masks its attention "
                    f"over blocks of {self.block_length}, and was trained so"
                )
            return self.logits
        asked = not {*names}.isdisjoint(STORES_ASKED)
        store = {"store_kv": True} if asked else {}
        precision = getattr(torch, str(self.computed_in).removeprefix("torch."))
        mixed = precision if self.rounds else None
        return BlockCausal(self.model, block_length, mixed, asked, store)

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
        refuse_uniform(config, network.name)
        causal = not {*_architectures(config)}.isdisjoint(BLOCK_CAUSAL)
        lengths = (getattr(config, name, None) for name in BLOCK_LENGTHS)
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
            "block_causal" if causal else "bidirectional",
            next((n for n in lengths if isinstance(n, int)), None),
            model,
        )


def refuse_uniform(config: PretrainedConfig, name: str) -> None:
    """Refuse a network that replaces tokens by any others (uniform-state diffusion).

    Raises:
        ValueError: If it says it is one; the error says what does not exist.
    """
    graph = getattr(config, "graph", None)  # SEDD
    kind = graph.get("type") if isinstance(graph, dict) else None
    said = (config.model_type, kind, getattr(config, "diffusion", None))
    if said[0] in UNIFORM or "uniform" in said[1:]:
        raise ValueError(
            f"{name} is a uniform-state diffusion model ({config.model_type}): it "
            "replaces tokens by any others and may replace them again, so no token is "
            "ever known to be final, and neither orders of unmasking nor p(x | order) "
            "exist. p(x) is a sum over all texts at all noise levels; its bound takes "
            "the noise schedule of training, which the configuration does not hold"
        )


def _architectures(config: PretrainedConfig) -> list[str]:
    return getattr(config, "architectures", None) or []


def _published_shift(config: PretrainedConfig) -> int | None:
    return next((SHIFTS[n] for n in _architectures(config) if n in SHIFTS), None)
