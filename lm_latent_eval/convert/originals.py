"""Tensor names of original checkpoints, and the error of unreadable ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor


def renamed(name: str, patterns: Iterable[tuple[str, str]], kind: str) -> str:
    r"""Return our name of a tensor, by the first pattern that matches.

    Args:
        name: Its name there.
        patterns: Regular expressions and what to write for them.
        kind: Of the model, for the error.

    Raises:
        ValueError: If no pattern matches.

    Example:
        >>> renamed("rnn.0.bias", [(r"^rnn\.(\d)\.", r"trunk.rnn.\1.")], "RNNG")
        'trunk.rnn.0.bias'
    """
    for pattern, new in patterns:
        found, hits = re.subn(pattern, new, name)
        if hits:
            return found
    raise ValueError(f"{name!r} is not a tensor of an original {kind}")


def misfits(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, str]]:
    """Yield tensors that do not fit a model: name, shape wanted, shape found.

    Example:
        >>> import torch
        >>> wanted = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
        >>> found = {"a": torch.zeros(2), "b": torch.zeros(2).int()}
        >>> list(misfits(wanted, found))
        [('b', '(2,)', '(2,) of torch.int32'), ('c', '(2,)', 'nothing')]
    """
    for name in sorted(wanted.keys() | found.keys()):
        kinds = _kind(wanted.get(name)), _kind(found.get(name))
        if kinds[0] != kinds[1]:
            yield name, *kinds


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Return the first tensor that holds NaN or infinity, and what that says."""
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            return (
                f"tensor {name!r} holds NaN or infinity: the training diverged or the "
                "file is damaged"
            )
    return None


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    of = "" if tensor.is_floating_point() else f" of {tensor.dtype}"
    return f"{tuple(tensor.shape)}{of}"


class OriginalError(ValueError):
    """A file that is none of the original program's, or is damaged."""
