"""Shared parts of conversions: names and models of tensors, and the error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lm_latent_eval.convert.pickles import PickleError
from lm_latent_eval.models.checkpoint import misfits

ModelT = TypeVar("ModelT", bound=nn.Module)


class OriginalError(ValueError):
    """Error raised for a file that is damaged, or not of the original program."""


@contextmanager
def refusing(file: object) -> Iterator[None]:
    """Name the file whose content is refused.

    Raises:
        OriginalError: In place of a ``PickleError``.
    """
    try:
        yield
    except PickleError as err:
        raise OriginalError(f"{file} is refused: {err}") from err


def renamed(
    weights: Mapping[str, Tensor],
    patterns: Sequence[tuple[str, str]],
    kind: str,
    left_out: Iterable[str] = (),
) -> dict[str, Tensor]:
    r"""Tensors under our names, by the first pattern that matches each.

    Args:
        weights: Their names -> tensors.
        patterns: Regular expressions and replacements.
        kind: Name of the model, for the error.
        left_out: Regular expressions of whole names that ours lack.

    Raises:
        ValueError: If no pattern matches a name.

    Example:
        >>> weights = {"rnn.0.bias": torch.zeros(2), "copy": torch.zeros(2)}
        >>> ours = [(r"^rnn\.(\d)\.", r"trunk.\1.")]
        >>> [*renamed(weights, ours, "RNNG", ["copy", "rnn"])]
        ['trunk.0.bias']
    """
    unwanted = re.compile("|".join(left_out) or r"(?!)")
    ours = {}
    for name, tensor in weights.items():
        if unwanted.fullmatch(name):
            continue
        for pattern, new in patterns:
            if re.search(pattern, name):
                ours[re.sub(pattern, new, name)] = tensor
                break
        else:
            raise ValueError(f"{name!r} is not a tensor of an original {kind}")
    return ours


def in_order(words: Any) -> list[str]:
    """Words of a table from 0, 1, 2, ... to words.

    Raises:
        PickleError: If it is something else, or has a word twice.
    """
    if not isinstance(words, dict) or {*words} != {*range(len(words))}:
        raise PickleError("the ids of its words are not 0, 1, 2, ...")
    ordered = [words[index] for index in range(len(words))]
    if not all(isinstance(word, str) for word in ordered):
        raise PickleError("not all of its words are strings")
    if twice := sorted(word for word, n in Counter(ordered).items() if n > 1):
        raise PickleError(f"it lists the word {twice[0]!r:.200} twice")
    return ordered


def with_weights(
    build: Callable[[], ModelT],
    weights: Mapping[str, Tensor],
    file_of: Callable[[str], object],
) -> ModelT:
    """Build a model with the weights of an original, ready to evaluate.

    Args:
        build: Builds the model.
        weights: Tensors under our names.
        file_of: Our name of a tensor -> the file that should have it, for errors.

    Raises:
        OriginalError: If a tensor is missing, of another size or unknown.
    """
    with torch.device("meta"):  # sizes without weights take no memory
        model = build()
    for name, expected, actual in misfits(model.state_dict(), weights):
        raise OriginalError(
            f"{file_of(name)} has {actual} as our {name}, expected {expected}"
        )
    model.load_state_dict(weights, assign=True)
    return model.eval()
