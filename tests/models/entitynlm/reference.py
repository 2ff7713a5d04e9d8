"""The original EntityNLM's configurations A and B as models of ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lm_latent_eval.convert.allennlp import placed
from lm_latent_eval.convert.entitynlm import rename_weights
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.latents import Chains
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.text.batch import TokenBatch

FOLDER = Path(__file__).parents[2] / "reference" / "entitynlm"


@cache
def numbers() -> dict[str, Any]:
    """Everything but the weights."""
    return json.loads((FOLDER / "entitynlm.json").read_text())


@cache
def originals(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of p and q by their original names.

    The originals have one proposal; it serves as the peeking and as the non-peeking
    one, which differ in the tokens it reads.
    """
    return (
        load_file(FOLDER / f"entitynlm_{name}.safetensors"),
        load_file(FOLDER / f"entitydisc_{name}.safetensors"),
    )


@cache
def model(name: str) -> EntityNLM:
    """Configuration A or B in float64."""
    options = numbers()["config"]["models"][name]
    ours = {key: options[key] for key in options if key in EntityNLMConfig.rules}
    config = EntityNLMConfig(**ours, never_uttered=[])
    generative, disc = (
        rename_weights(weights, tied=options["tie_weights"])
        for weights in originals(name)
    )
    weights = placed(generative)
    for reading in ("peeking", "nonpeeking"):
        weights |= placed(disc, reading)
    entitynlm = EntityNLM(config).double().eval()
    entitynlm.load_state_dict(weights)
    return entitynlm.requires_grad_(False)


def batch(*documents: list[int]) -> TokenBatch:
    """Documents as the originals split them: the first token is only read."""
    first = [document[0] for document in documents]
    return TokenBatch.collate([document[1:] for document in documents], first=first)


def chains(*annotations: dict[str, Any]) -> Chains:
    """One annotation a text without that of the first token, (B, 1, T)."""
    size = max(len(z["ids"]) for z in annotations) - 1
    rows = torch.zeros(2, len(annotations), 1, size, dtype=torch.long)
    for b, z in enumerate(annotations):
        assert z["types"][0] == z["ids"][0] == z["lengths"][0] == 0, "premise"
        assert [i > 0 for i in z["ids"]] == [r == 1 for r in z["types"]], "premise"
        rows[0, b, 0, : len(z["ids"]) - 1] = torch.tensor(z["ids"][1:])
        rows[1, b, 0, : len(z["ids"]) - 1] = torch.tensor(z["lengths"][1:])
    return Chains(rows[0], rows[1])
