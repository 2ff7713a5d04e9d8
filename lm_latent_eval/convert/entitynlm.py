"""Conversion of EntityNLM checkpoints from the authors' code.

Sizes are those of the weights. All words can be predicted, padding and start too, as
the weights were trained: p sums to less than 1 over texts without them. No noise is
added to new entities.

Words are those of another program, so the tokenizer splits at white space alone: texts
are given as the original data has them, with spaces between words, a sentence a line.
The model begins every sentence after ``@@START@@`` and ends it with ``@@END@@``, the
last one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex
from tokenizers.normalizers import Replace
from torch import Tensor

from lm_latent_eval.convert.allennlp import (
    by_reading,
    check_vocabularies,
    matrix,
    ordered_words,
    take_over,
)
from lm_latent_eval.convert.archive import Archive, read_archive
from lm_latent_eval.convert.originals import OriginalError, renamed
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import READING_MOST, EntityNLM
from lm_latent_eval.text.corpora import END_MARK, START_MARK
from lm_latent_eval.text.words import WordTokenizer

_KIND = (
    "EntityNLM of the ACL 2020 code; models of the code before it are other models, "
    "and are not read"
)

_EMBEDDINGS = "_text_field_embedder.token_embedder_tokens.weight"
_OUTPUT, _OUTPUT_BIAS = "_vocab_projection.weight", "_vocab_projection.bias"
_LENGTH = "_mention_length_projection.weight"

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
    r"_rnn\._rnns\.\d+\.module\.weight_hh_l0",  # of weight_hh_l0_raw, weight dropout
    r"_dynamic_embeddings\._initial_embedding",  # of _entity_type_projection.weight
)


def rename_weights(weights: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Give the tensors of an original ``EntityNLM`` or ``EntityDisc`` our names.

    Args:
        weights: Name -> tensor.
        tied: Whether the output layer shares the embeddings (its copy is left out).

    Raises:
        ValueError: If a tensor's name is unknown.
    """
    left_out = (*_COPIES, re.escape(_OUTPUT)) if tied else _COPIES
    return renamed(weights, _RENAMED, _KIND, left_out)


def convert(
    archive: Path, output: Path, *, proposals: Iterable[Path] = ()
) -> EntityNLM:
    """Write a checkpoint directory of an original model.

    Args:
        archive: Archive of an EntityNLM: a tar.gz or its unpacked folder.
        output: The directory.
        proposals: Archives of its proposals (EntityDisc); one whose reader has an
            ``offset`` does not peek. Without any, p's own ``prior`` proposes.

    Returns:
        The model.

    Raises:
        ValueError: If something is missing, damaged, or of another model.
    """
    original = read_archive(archive)
    if _OUTPUT not in original.weights:
        raise OriginalError(
            f"{original.path}: weights.th lacks {_OUTPUT}: it is no generative "
            "EntityNLM; archives of proposals come after --proposal"
        )
    twins = by_reading(map(read_archive, proposals))
    for twin in twins.values():
        check_vocabularies(original, twin, ["tokens"])
    tokenizer = _tokenizer(original)
    config = EntityNLMConfig(
        vocab_size=tokenizer.vocab_size,
        never_uttered=[],
        proposals=[name for name in READING_MOST if name in twins],
        num_unknown_types=len(original.vocabulary.get("tokens_unk", ())),
        **_size(original),
    )
    model = take_over(
        lambda: EntityNLM(config),
        original,
        twins,
        partial(rename_weights, tied=config.tie_weights),
        tables=dict.fromkeys((_EMBEDDINGS, _OUTPUT, _OUTPUT_BIAS), "tokens"),
    )
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def _size(archive: Archive) -> dict[str, Any]:
    weights = archive.weights
    layers = 0
    while f"_rnn._rnns.{layers}.weight_hh_l0_raw" in weights:
        layers += 1
    embeddings = matrix(archive, _EMBEDDINGS)
    return {
        "embedding_dim": embeddings.shape[1],
        "hidden_size": matrix(archive, "_rnn._rnns.0.weight_hh_l0_raw").shape[1],
        "num_layers": layers,
        "max_mention_length": len(matrix(archive, _LENGTH)),
        "tie_weights": torch.equal(weights[_OUTPUT], embeddings),
    }


def _tokenizer(archive: Archive) -> WordTokenizer:
    """Number the words in our order; a line break ends and begins a sentence."""
    words = ordered_words(archive)
    # A start mark of the next sentence is not repeated.
    line_break = Regex(rf"\s*\n\s*(?:{START_MARK}(?!\S)\s*)?")
    marks = Replace(line_break, f" {END_MARK} {START_MARK} ")
    return WordTokenizer.at_white_space(words, len(words), normalizer=marks)
