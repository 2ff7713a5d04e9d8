"""Weights and settings of an original NKLM in this package's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lm_latent_eval.convert.originals import lrlm
from lm_latent_eval.convert.originals.lrlm import config_of, inner_size

PREFIXES = (
    ("fact_key_mlp.layer1.", "to_fact.0."),
    ("fact_key_mlp.layer2.", "to_fact.2."),
    ("copy_predictor.layer1.", "copy.0."),
    ("copy_predictor.layer2.", "copy.2."),
    ("pos_predictor.layer1.", "to_position.0."),
    ("pos_predictor.layer2.", "to_position.2."),
    ("position_embed.", "position."),
    ("naf_vec", "no_fact"),
)


def weights_of(original: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Rename an NKLM's tensors, constants among them."""
    renamed = lrlm.weights_of(original, tied=tied)
    for name, tensor in original.items():
        for old, new in PREFIXES:
            if name.startswith(old):
                renamed[new + name.removeprefix(old)] = tensor
    return renamed


def nklm_config_of(
    options: Mapping[str, Any], original: Mapping[str, Tensor], vocab_size: int
) -> dict[str, Any]:
    """Return what the original's options say of an NKLM; see ``config_of``."""

    def size(name: str, default: int) -> int:
        given: int = options[name]
        return default if given == -1 else given

    return {
        **config_of(options, original, vocab_size),
        "fact_hidden": inner_size(options),
        "num_positions": options["pos_embed_count"],
        "position_dim": options["pos_embed_dim"],
        "copy_hidden": size("copy_mlp_hidden_dim", options["hidden_size"]),
        "position_hidden": size("pos_mlp_hidden_dim", 2 * options["pos_embed_dim"]),
        "only_possible": False,
    }
