"""Weights of an original EntityNLM and EntityDisc in this package's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from lm_latent_eval.convert.renaming import renamed

_KIND = (
    "EntityNLM of the ACL 2020 code; models of the code before it are other models, "
    "and are not read"
)

_RENAMED = (
    (
        r"^_text_field_embedder\.token_embedder_tokens\.weight$",
        "trunk.token_embeddings.weight",
    ),
    (r"^_rnn\._rnns\.(\d+)\.weight_hh_l0_raw$", r"trunk.rnn.layers.\1.weight_hh_l0"),
    (
        r"^_rnn\._rnns\.(\d+)\.module\.(weight_ih|bias_\w\w)_l0$",
        r"trunk.rnn.layers.\1.\2_l0",
    ),
    (r"^_entity_type_projection\.weight$", "trunk.mention.weight"),
    (r"^_dynamic_embeddings\._embedding_projection\.weight$", "trunk.slot.weight"),
    (r"^_dynamic_embeddings\._delta_projection\.weight$", "trunk.gate.weight"),
    (r"^_dynamic_embeddings\._distance_scalar$", "trunk.distance"),
    (r"^_mention_length_projection\.(\w+)$", r"trunk.length.\1"),
    (r"^_entity_output_projection\.weight$", "words.entity.weight"),
    (r"^_vocab_projection\.(\w+)$", r"words.\1"),
)
_COPIES = (
    r"^_rnn\._rnns\.\d+\.module\.weight_hh_l0$",  # of weight_hh_l0_raw, weight dropout
    r"^_dynamic_embeddings\._initial_embedding$",  # of _entity_type_projection.weight
)


def rename_weights(
    generative: Mapping[str, Tensor],
    proposals: Mapping[str, Mapping[str, Tensor]],
    *,
    tied: bool,
) -> dict[str, Tensor]:
    """Give the originals' tensors their names in ``EntityNLM``.

    Args:
        generative: Name -> tensor of the original ``EntityNLM``.
        proposals: Our name of a proposal -> tensors of an original ``EntityDisc``.
        tied: Whether the output layer shares the embeddings (its copy is left out).

    Raises:
        ValueError: If a tensor has a name that no original EntityNLM has.
    """
    weights = {
        f"generative.{name}": tensor
        for name, tensor in _rename(generative).items()
        if not (tied and name == "words.weight")
    }
    for which, tensors in proposals.items():
        for name, tensor in _rename(tensors).items():
            weights[f"proposals.{which}.{name.removeprefix('trunk.')}"] = tensor
    return weights


def _rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for old, tensor in weights.items():
        if any(re.match(pattern, old) for pattern in _COPIES):
            continue
        ours[renamed(old, _RENAMED, _KIND)] = tensor
    return ours
