"""A directory whose network runs code of its own, as published ones do.

A tiny BERT inside, called as LLaDA, Dream or MDLM is, so what is right is known.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from tests.wrappers.mdm import tiny

CODE = """
import torch
from transformers import BertConfig, BertForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class OwnConfig(PretrainedConfig):
    model_type = "{model_type}"


class {name}(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "inner"

    def __init__(self, config):
        super().__init__(config)
        self.inner = BertForMaskedLM(BertConfig(**config.inner))
        self.post_init()

    def forward(self, input_ids{argument}):
        logits = self.inner(input_ids=input_ids{masked}).logits
        return MaskedLMOutput(logits={logits})
"""
ROLLED = "torch.cat([logits[:, 1:], logits[:, :1]], 1)"
MASKED_LM, TIMED = "AutoModelForMaskedLM", "logits + 0 * timesteps[0]"
SAMPLING = ", timesteps, sample_mode=False"
KINDS = {
    "llada": ("LLaDAModelLM", "AutoModelForCausalLM", "", "logits"),
    "Dream": ("DreamModel", "AutoModel", "", ROLLED),
    "mdlm": ("MDLM", MASKED_LM, ", timesteps", TIMED),
    "bd3lm": ("BD3LM", MASKED_LM, SAMPLING, f"{TIMED} if sample_mode else None"),
    "unheard_of": ("OwnModel", "AutoModel", "", "logits"),
}
"""Model type -> its class, that of transformers, what it is called with and returns."""
MASKED = """, attention_mask=-1e300 * (
            (block := torch.arange(input_ids.shape[1]) // self.config.block_size)[None]
            > block[:, None]
        )[None, None].double()"""
"""Attention over blocks, as BD3LM has it."""
LENGTHS = {
    "llada": "max_sequence_length",
    "mdlm": "model_length",
    "bd3lm": "model_length",
}
"""Model type -> what its configuration calls the tokens that it reads at once."""


def write(directory: Path, kind: str, *, mask: bool = True, **more: object) -> Path:
    """Write such a directory, with ``more`` in its configuration."""
    name, auto_class, argument, logits = KINDS[kind]
    network = tiny.network("bert")
    code = CODE.format(
        name=name,
        model_type=kind,
        argument=argument,
        logits=logits,
        masked=MASKED if kind == "bd3lm" else "",
    )
    (directory / "own.py").write_text(code)
    config = {
        "model_type": kind,
        "architectures": [name],
        "auto_map": {"AutoConfig": "own.OwnConfig", auto_class: f"own.{name}"},
        "inner": tiny.SIZE,
        "dtype": "float64",
        LENGTHS.get(kind, "max_position_embeddings"): 20,
        **more,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {
        f"inner.{name}": tensor.contiguous().clone()
        for name, tensor in network.model.state_dict().items()
        if "decoder." not in name
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    tokenizer = tiny.tokenizer(mask=mask, start=kind == "Dream")
    tokenizer.save_pretrained(directory)
    return directory
