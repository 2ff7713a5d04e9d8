"""Turns an EntityNLM that its authors' code trained into a checkpoint of ours.

Sizes are those of the weights. All words can be uttered, padding and start too, as the
weights were trained: p sums to less than 1 over texts without them. No noise is added
to new entities.

The words of such a model were cut by another program, so its tokenizer cuts at white
space alone: texts are given as the original data has them, with spaces between words, a
sentence a line. The model begins every sentence after ``@@START@@`` and ends it with
``@@END@@``, the last one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from lm_latent_eval.models import allennlp, checkpoint
from lm_latent_eval.models.allennlp import Archive, ArchiveError, read_archive
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import READING_MOST, EntityNLM
from lm_latent_eval.models.entitynlm.original import rename_weights
from lm_latent_eval.text.corpora import END_MARK, START_MARK
from lm_latent_eval.text.words import UNKNOWN, WordTokenizer

SPECIAL_WORDS = (allennlp.PADDING, allennlp.UNKNOWN, START_MARK, END_MARK)
"""In the order of our ids; where a vocabulary has another, its words are renumbered."""

_EMBEDDINGS = "_text_field_embedder.token_embedder_tokens.weight"
_OUTPUT, _OUTPUT_BIAS = "_vocab_projection.weight", "_vocab_projection.bias"
_LENGTH = "_mention_length_projection.weight"


def convert(
    archive: Path, output: Path, *, proposals: Iterable[Path] = ()
) -> EntityNLM:
    """Write a checkpoint directory of an original model.

    Args:
        archive: Of an EntityNLM: a tar.gz or what it unpacks to.
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
        raise ArchiveError(
            f"{original.path}: weights.th lacks {_OUTPUT}: it is no generative "
            "EntityNLM; archives of proposals come after --proposal"
        )
    twins: dict[str, Archive] = {}
    for twin in map(read_archive, proposals):
        if twin.namespace("tokens") != original.namespace("tokens"):
            raise ArchiveError(
                f"{twin.path}: vocabulary/tokens.txt is not that of {original.path}: "
                "the proposal belongs to another model"
            )
        if (reading := _reading(twin)) in twins:
            raise ArchiveError(f"{twin.path} is a second {reading} proposal: give one")
        twins[reading] = twin
    order = _order(original)
    config = EntityNLMConfig(
        vocab_size=len(order),
        never_uttered=[],
        proposals=[name for name in READING_MOST if name in twins],
        num_unknown_types=len(original.vocabulary.get("tokens_unk", ())),
        **_size(original),
    )
    weights = _renamed(original, order, tied=config.tie_weights)
    for reading, twin in twins.items():
        weights |= _renamed(twin, order, tied=config.tie_weights, proposal=reading)
    model = EntityNLM(config)
    _check_shapes(model, weights, original, twins)
    model.load_state_dict(weights, assign=True)  # in the precision of the archive
    model.eval()  # type: ignore[no-untyped-call]
    tokenizer = _tokenizer(original, order)
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def _size(archive: Archive) -> dict[str, Any]:
    """Return the sizes that the weights have, by our names."""
    weights = archive.weights
    layers = 0
    while f"_rnn._rnns.{layers}.weight_hh_l0_raw" in weights:
        layers += 1
    for name in (_EMBEDDINGS, _LENGTH, "_rnn._rnns.0.weight_hh_l0_raw"):
        if weights.get(name, torch.empty(0)).ndim != 2:
            raise ArchiveError(
                f"{archive.path}: weights.th has no matrix {name}: it is no EntityNLM "
                "of the ACL 2020 code"
            )
    return {
        "embedding_dim": weights[_EMBEDDINGS].shape[1],
        "hidden_size": weights["_rnn._rnns.0.weight_hh_l0_raw"].shape[1],
        "num_layers": layers,
        "max_mention_length": weights[_LENGTH].shape[0],
        "tie_weights": torch.equal(weights[_OUTPUT], weights[_EMBEDDINGS]),
    }


def _reading(proposal: Archive) -> str:
    """Return ``peeking`` or ``nonpeeking``."""
    reader = proposal.config.get("dataset_reader")
    offset = isinstance(reader, dict) and reader.get("offset")
    return "nonpeeking" if offset else "peeking"


def _order(archive: Archive) -> list[int]:
    """Return the words' ids in our order: the special ones first."""
    words = archive.namespace("tokens")
    for word in SPECIAL_WORDS:
        if word not in words:
            raise ArchiveError(f"{archive.path}: vocabulary/tokens.txt lacks {word}")
    rows = len(archive.weights.get(_EMBEDDINGS, ()))
    if rows != len(words):
        raise ArchiveError(
            f"{archive.path}: {_EMBEDDINGS} in weights.th has {rows} rows, but "
            f"vocabulary/tokens.txt has {len(words)} words, padding included: they are "
            "of different models"
        )
    special = [words.index(word) for word in SPECIAL_WORDS]
    return special + [i for i in range(len(words)) if i not in special]


def _renamed(
    archive: Archive, order: Sequence[int], *, tied: bool, proposal: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of an archive by their names in ``EntityNLM``."""
    by_word = (_EMBEDDINGS, _OUTPUT, _OUTPUT_BIAS)
    weights = {
        name: tensor[list(order)]
        if name in by_word and len(tensor) == len(order)
        else tensor
        for name, tensor in archive.weights.items()
    }
    try:
        if proposal is None:
            return rename_weights(weights, {}, tied=tied)
        return rename_weights({}, {proposal: weights}, tied=False)
    except ValueError as err:
        raise ArchiveError(f"{archive.path}: weights.th: {err}") from err


def _check_shapes(
    model: EntityNLM,
    found: Mapping[str, Tensor],
    original: Archive,
    proposals: Mapping[str, Archive],
) -> None:
    """Refuse weights that do not fit each other."""
    wanted: dict[str, Tensor] = model.state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        part, which, *_ = name.split(".")
        archive = proposals[which] if part == "proposals" else original
        shapes = [
            tuple(table[name].shape) if name in table else "nothing"
            for table in (wanted, found)
        ]
        if shapes[0] != shapes[1]:
            raise ArchiveError(
                f"{archive.path}: weights.th has {shapes[1]} as our {name}, where a "
                f"model of the size of {original.path} has {shapes[0]}"
            )


def _tokenizer(archive: Archive, order: Sequence[int]) -> WordTokenizer:
    """Number the words in our order; a line break ends and begins a sentence."""
    words = archive.namespace("tokens")
    vocab = {words[old]: new for new, old in enumerate(order)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=SPECIAL_WORDS[UNKNOWN]))
    # Where the next sentence has its own start mark, that is the one.
    line_break = Regex(rf"\s*\n\s*(?:{START_MARK}(?!\S)\s*)?")
    tokenizer.normalizer = Replace(line_break, f" {END_MARK} {START_MARK} ")
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return WordTokenizer(tokenizer, len(words))
