"""Conversion shared by KGLM and EntityNLM: AllenNLP archives of model and proposals.

An archive holds one model or one proposal. A proposal has the vocabularies of its model
and reads the word that it decides on (``peeking``), unless its dataset reader has an
``offset`` (``nonpeeking``). Texts begin and end with marks that are words.
Source: the code of Logan et al. (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from lm_latent_eval.convert.archive import PADDING, UNKNOWN, Archive
from lm_latent_eval.convert.originals import ModelT, OriginalError, with_weights
from lm_latent_eval.text.corpora import END_MARK, START_MARK

SPECIAL_WORDS = (PADDING, UNKNOWN, START_MARK, END_MARK)
"""Reserved words in the order of our ids; other vocabularies are renumbered."""

Weights: TypeAlias = Mapping[str, Tensor]
Renaming: TypeAlias = Callable[[Weights], Weights]
"""Function from tensors of a model or a proposal to our names; a ``ValueError`` names
an unknown tensor."""


def by_reading(proposals: Iterable[Archive]) -> dict[str, Archive]:
    """Sort proposals into ``peeking`` and ``nonpeeking``.

    Raises:
        OriginalError: If two are of one kind.
    """
    by_name: dict[str, Archive] = {}
    for proposal in proposals:
        offset = proposal.section("dataset_reader").get("offset")
        reading = "nonpeeking" if offset else "peeking"
        if reading in by_name:
            raise OriginalError(
                f"{proposal.path} is a second {reading} proposal: give one"
            )
        by_name[reading] = proposal
    return by_name


def check_vocabularies(
    model: Archive, proposal: Archive, namespaces: Iterable[str]
) -> None:
    """Refuse a proposal with other words, or other entries of given namespaces.

    Raises:
        OriginalError: If a vocabulary is missing or differs from the model's.
    """
    for namespace in namespaces:
        if proposal.namespace(namespace) != model.namespace(namespace):
            raise OriginalError(
                f"{proposal.path}: vocabulary/{namespace}.txt is not that of "
                f"{model.path}: the proposal belongs to another model"
            )


def matrix(archive: Archive, name: str) -> Tensor:
    """Matrix among the weights.

    Raises:
        OriginalError: If there is none of that name.
    """
    tensor = archive.weights.get(name, torch.empty(0))
    if tensor.ndim != 2:
        raise OriginalError(
            f"{archive.path}: weights.th has no matrix {name}: it is of another model, "
            "or of other code"
        )
    return tensor


def ordered_words(archive: Archive) -> list[str]:
    """Words in the order of our ids: the special ones first.

    Raises:
        OriginalError: If there is no vocabulary, or it lacks a special word.
    """
    words = archive.namespace("tokens")
    return [words[i] for i in _order(archive)]


def take_over(
    build: Callable[[], ModelT],
    original: Archive,
    proposals: Mapping[str, Archive],
    rename: Renaming,
    *,
    tables: Mapping[str, str],
) -> ModelT:
    """Build our model with the original's weights, in the precision of the archives.

    Args:
        build: Builds it.
        original: Archive of the model.
        proposals: Kind of proposal -> archive.
        rename: Function from their names to ours.
        tables: Their names of tensors with one row an entry -> the vocabulary. Rows are
            permuted as the words are.

    Raises:
        OriginalError: If a tensor is missing, unknown, or its size contradicts its
            vocabulary or other tensors.
    """
    order = _order(original)
    weights: dict[str, Tensor] = {}
    for reading, archive in [(None, original), *proposals.items()]:
        _check_rows(archive, tables)
        theirs = {
            name: tensor[order] if tables.get(name) == "tokens" else tensor
            for name, tensor in archive.weights.items()
        }
        try:
            weights |= placed(rename(theirs), reading)
        except ValueError as err:
            raise OriginalError(f"{archive.path}: weights.th: {err}") from err

    def file_of(name: str) -> Path:
        part, which, *_ = name.split(".")
        return (proposals[which] if part == "proposals" else original).path

    return with_weights(build, weights, file_of)


def placed(part: Weights, reading: str | None = None) -> dict[str, Tensor]:
    """Names of the tensors of the model, or of a proposal, in the whole."""
    if reading is None:
        return {f"generative.{name}": tensor for name, tensor in part.items()}
    return {
        f"proposals.{reading}.{name.removeprefix('trunk.')}": tensor
        for name, tensor in part.items()
    }


def _check_rows(archive: Archive, tables: Mapping[str, str]) -> None:
    for name, namespace in tables.items():
        tensor, size = archive.weights.get(name), len(archive.namespace(namespace))
        if tensor is not None and tensor.shape[:1] != (size,):
            raise OriginalError(
                f"{archive.path}: vocabulary/{namespace}.txt has {size} entries, the "
                f"padding included, but {name} of weights.th is {(*tensor.shape,)}: "
                "they are of different models"
            )


def _order(archive: Archive) -> list[int]:
    words = archive.namespace("tokens")
    missing = [word for word in SPECIAL_WORDS if word not in words]
    if missing:
        raise OriginalError(
            f"{archive.path}: vocabulary/tokens.txt lacks {missing[0]}: it is not the "
            "vocabulary of an original model"
        )
    special = [words.index(word) for word in SPECIAL_WORDS]
    return special + [i for i in range(len(words)) if i not in special]
