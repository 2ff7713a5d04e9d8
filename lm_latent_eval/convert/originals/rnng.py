"""Weights of an original RNNG (Kim et al., 2019) and its proposal in our layout.

Originals charge for actions that newly trained models exclude; ``only_possible=False``
in the configuration keeps their probabilities as their authors scored them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from lm_latent_eval.convert.renaming import renamed
from lm_latent_eval.models.rnng.configuration import RNNGConfig

_RENAMED = (
    (r"^emb\.weight$", r"generative.embeddings.weight"),
    (r"^vocab_mlp\.1\.bias$", r"generative.bias"),
    (r"^stack_rnn\.linears\.(\d+)\.(\w+)$", r"generative.stack.linears.\1.\2"),
    (r"^tree_rnn\.linear\.(\w+)$", r"generative.composition.linear.\1"),
    (r"^action_mlp_p\.1\.(\w+)$", r"generative.action.\1"),
    (r"^q_pos_emb\.weight$", r"spans.positions.weight"),
    (r"^q_leaf_rnn\.(\w+)$", r"spans.rnn.\1"),
    (r"^q_binary\.([02])\.(\w+)$", r"spans.score.\1.\2"),
    (r"^q_binary\.4\.(\w+)$", r"spans.score.3.\1"),
)
_TIED = "vocab_mlp.1.weight"
_SIZES = ("emb.weight", "q_leaf_rnn.weight_hh_l0", "q_pos_emb.weight")


def rename_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the original's tensors their names in ``RNNG``.

    The original's proposal shares the word embeddings of p; ours gets a copy.

    Raises:
        ValueError: If a tensor has a name that no original has, or the output layer is
            not the table of embeddings.
    """
    tied = weights.get(_TIED)
    if tied is not None and not torch.equal(tied, weights["emb.weight"]):
        raise ValueError(f"{_TIED} is not emb.weight: not a tied original RNNG")
    ours = {}
    for old, tensor in weights.items():
        if old == _TIED:
            continue
        ours[renamed(old, _RENAMED, "RNNG")] = tensor
    embeddings = ours["generative.embeddings.weight"]
    return {**ours, "spans.embeddings.weight": embeddings.clone()}


def configuration(weights: Mapping[str, Tensor], *, sentence_ends: bool) -> RNNGConfig:
    """Read the sizes of an original off its weights.

    Args:
        weights: Under their original names.
        sentence_ends: Whether its sentences are scored with their end, which is not
            written in a checkpoint (its published perplexities are without).

    Raises:
        ValueError: If one that tells a size is missing or no matrix.
    """
    for name in _SIZES:
        if name not in weights or weights[name].ndim != 2:
            raise ValueError(f"{name} is no matrix in it")
    vocab_size, hidden_size = weights["emb.weight"].shape
    layers = [name for name in weights if re.fullmatch(r"stack_rnn.*\.bias", name)]
    return RNNGConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=len(layers),
        proposal_size=weights["q_leaf_rnn.weight_hh_l0"].shape[1],
        max_words=len(weights["q_pos_emb.weight"]) - 2,
        sentence_ends=sentence_ends,
        only_possible=False,
        never_uttered=[],
    )
