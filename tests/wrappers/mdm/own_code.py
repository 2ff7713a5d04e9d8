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


class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "inner"

    def __init__(self, config):
        super().__init__(config)
        self.inner = BertForMaskedLM(BertConfig(**config.inner))
        self.post_init()

    def forward(self, input_ids{argument}):
        logits = self.inner(input_ids=input_ids).logits
        return MaskedLMOutput(logits={logits})
"""
KINDS = {
    "llada": ("AutoModelForCausalLM", "", "logits"),
    "Dream": ("AutoModel", "", "torch.cat([logits[:, 1:], logits[:, :1]], 1)"),
    "mdlm": ("AutoModelForMaskedLM", ", timesteps", "logits + 0 * timesteps[0]"),
    "unheard_of": ("AutoModel", "", "logits"),
}
"""Model type -> class of transformers, what it is called with, what it returns."""


def write(directory: Path, kind: str, *, mask: bool = True) -> Path:
    """Write such a directory."""
    auto_class, argument, logits = KINDS[kind]
    network = tiny.network("bert")
    code = CODE.format(model_type=kind, argument=argument, logits=logits)
    (directory / "own.py").write_text(code)
    config = {
        "model_type": kind,
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "own.OwnConfig", auto_class: "own.OwnModel"},
        "inner": tiny.SIZE,
        "dtype": "float64",
        "max_position_embeddings": 20,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {
        f"inner.{name}": tensor.contiguous().clone()
        for name, tensor in network.model.state_dict().items()
        if "decoder." not in name
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    tiny.tokenizer(mask=mask).save_pretrained(directory)
    return directory
