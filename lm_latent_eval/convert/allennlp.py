"""Conversion shared by KGLM and EntityNLM: AllenNLP archives of model and proposals.

An archive holds one model or one proposal. A proposal has the vocabularies of its model
and reads the word that it decides on (``peeking``), unless its dataset reader has an
``offset`` (``nonpeeking``). Texts begin and end with marks that are words.
Source: the code of Logan et al. (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lm_latent_eval.convert.archive import (
    PADDING,
    UNKNOWN,
    Archive,
    ArchiveError,
)
from lm_latent_eval.convert.originals import misfits
from lm_latent_eval.text.corpora import END_MARK, START_MARK

SPECIAL_WORDS = (PADDING, UNKNOWN, START_MARK, END_MARK)
"""In the order of our ids; where a vocabulary has another, its words are renumbered."""

Weights: TypeAlias = Mapping[str, Tensor]
Renaming: TypeAlias = Callable[[Weights], Weights]
"""Tensors of a model or a proposal -> by our names; a ``ValueError`` says which one it
does not know."""


def by_reading(proposals: Iterable[Archive]) -> dict[str, Archive]:
    """Tell proposals apart by what they read, ``peeking`` or ``nonpeeking``.

    Raises:
        ArchiveError: If two read the same.
    """
    found: dict[str, Archive] = {}
    for proposal in proposals:
        offset = proposal.section("dataset_reader").get("offset")
        reading = "nonpeeking" if offset else "peeking"
        if reading in found:
            raise ArchiveError(
                f"{proposal.path} is a second {reading} proposal: give one"
            )
        found[reading] = proposal
    return found


def check_vocabularies(
    model: Archive, proposal: Archive, namespaces: Iterable[str]
) -> None:
    """Refuse a proposal over other words, or other entries of another namespace.

    Raises:
        ArchiveError: If a vocabulary is missing or not that of the model.
    """
    for namespace in namespaces:
        if proposal.namespace(namespace) != model.namespace(namespace):
            raise ArchiveError(
                f"{proposal.path}: vocabulary/{namespace}.txt is not that of "
                f"{model.path}: the proposal belongs to another model"
            )


def check_rows(archive: Archive, tensor: str, namespace: str) -> None:
    """Refuse a table that has not one row for each entry of its vocabulary.

    Raises:
        ArchiveError: If it has not, or one of the two is missing.
    """
    entries = archive.namespace(namespace)
    table = archive.weights.get(tensor, torch.empty(0, 0))
    if table.ndim != 2:
        raise ArchiveError(
            f"{archive.path}: {tensor} in weights.th is no table but of shape "
            f"{tuple(table.shape)}"
        )
    rows = len(table)
    if rows != len(entries):
        raise ArchiveError(
            f"{archive.path}: {tensor} in weights.th has {rows} rows, but "
            f"vocabulary/{namespace}.txt has {len(entries)} entries, padding "
            "included: they are of different models"
        )


def ordered_words(archive: Archive) -> list[str]:
    """Return the words in the order of our ids: the special ones first.

    Raises:
        ArchiveError: If there is no vocabulary, or it lacks a special word.
    """
    words = archive.namespace("tokens")
    return [words[i] for i in _order(archive)]


def take_over(
    model: nn.Module,
    original: Archive,
    proposals: Mapping[str, Archive],
    rename: Renaming,
    *,
    by_word: Collection[str],
    asked_by: str,
) -> None:
    """Load the original's weights into our model, in the precision of the archives.

    Args:
        model: Ours, ready to evaluate afterwards.
        original: The archive of the model.
        proposals: Reading -> archive.
        rename: From their names to ours.
        by_word: Their names of tensors with one row a word, which change places where
            the words do.
        asked_by: Where the sizes of our model come from, for messages.

    Raises:
        ArchiveError: If a tensor is missing, of another size or unknown.
    """
    order = _order(original)
    weights: dict[str, Tensor] = {}
    for reading, archive in [(None, original), *proposals.items()]:
        theirs = {
            name: tensor[order] if name in by_word and _fits(tensor, order) else tensor
            for name, tensor in archive.weights.items()
        }
        try:
            weights |= placed(rename(theirs), reading)
        except ValueError as err:
            raise ArchiveError(f"{archive.path}: weights.th: {err}") from err
    _check_shapes(model.state_dict(), weights, original, proposals, asked_by)
    model.load_state_dict(weights, assign=True)
    model.eval()


def placed(part: Weights, reading: str | None = None) -> dict[str, Tensor]:
    """Name the tensors of the model, or of the proposal that reads so, in the whole."""
    if reading is None:
        return {f"generative.{name}": tensor for name, tensor in part.items()}
    return {
        f"proposals.{reading}.{name.removeprefix('trunk.')}": tensor
        for name, tensor in part.items()
    }


def _fits(tensor: Tensor, order: Sequence[int]) -> bool:
    """Whether a tensor has one row for each word; other shapes are refused later."""
    return tensor.shape[:1] == (len(order),)


def _check_shapes(
    wanted: Weights,
    found: Weights,
    original: Archive,
    proposals: Mapping[str, Archive],
    asked_by: str,
) -> None:
    for name, ours, theirs in misfits(wanted, found):
        part, which, *_ = name.split(".")
        archive = proposals[which] if part == "proposals" else original
        raise ArchiveError(
            f"{archive.path}: {asked_by} asks for {ours} as our {name}, but "
            f"weights.th has {theirs}: they are of different models"
        )


def _order(archive: Archive) -> list[int]:
    """Return the words' ids in our order."""
    words = archive.namespace("tokens")
    missing = [word for word in SPECIAL_WORDS if word not in words]
    if missing:
        raise ArchiveError(
            f"{archive.path}: vocabulary/tokens.txt lacks {missing[0]}: it is not the "
            "vocabulary of an original model"
        )
    special = [words.index(word) for word in SPECIAL_WORDS]
    return special + [i for i in range(len(words)) if i not in special]
