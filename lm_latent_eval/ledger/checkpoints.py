"""Checkpoints of texts that are partly read.

A file each, beside the ledger, until the text is scored. A state is kept as the tensors
and numbers that it consists of: what classes they make up again is said by another
state of its kind, never by the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.files import digest, regular
from lm_latent_eval.ledger.files import StateFile
from lm_latent_eval.ledger.settings import Settings, plain, refuse_others

T = TypeVar("T")
Key = Sequence[str | int]
NOT_KEPT = {"kept": False}
"""Metadata of a field that all states of a model have alike: no checkpoint holds it."""
KIND = "checkpoint of a text"
_END = ".pt"


def contents(state: Any) -> Any:
    """Return the content of a state: tensors on the host and numbers, in lists.

    Args:
        state: Tensors, arrays, numbers and strings, in any (named) tuples, lists and
            dataclasses.

    Raises:
        TypeError: If there is something else in it.
    """
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state.copy())
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()  # a view would bring all it is a view of
    if isinstance(state, tuple | list):
        return [*map(contents, state)]
    if is_dataclass(state):
        return [contents(getattr(state, each.name)) for each in _kept(state)]
    raise TypeError(f"{type(state).__name__} is no tensor, number, tuple or dataclass")


def made_of(kept: Any, like: Any) -> Any:
    """Rebuild a state of a given kind from its ``contents``.

    Raises:
        ValueError: If that is of another kind.
    """
    if kept is None:
        return None
    if isinstance(like, Tensor) and isinstance(kept, Tensor):
        if (kept.dtype, kept.ndim) == (like.dtype, like.ndim):
            return kept.to(like.device)
    elif isinstance(like, np.ndarray) and isinstance(kept, Tensor):
        if (array := kept.numpy()).dtype == like.dtype and array.ndim == like.ndim:
            return array
    elif isinstance(like, tuple | list) and isinstance(kept, list):
        if len(kept) == len(like):
            parts = [made_of(*both) for both in zip(kept, like, strict=True)]
            return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    elif is_dataclass(like) and isinstance(kept, list):
        names = [each.name for each in _kept(like)]
        if len(kept) == len(names):
            pairs = zip(names, kept, strict=True)
            return replace(
                cast(Any, like),
                **{name: made_of(each, getattr(like, name)) for name, each in pairs},
            )
    elif type(kept) is type(like):
        return kept
    raise ValueError(f"it has a {type(kept).__name__} for a {type(like).__name__}")


def _kept(state: Any) -> list[Field[Any]]:
    return [each for each in fields(state) if each.metadata != NOT_KEPT]


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a run, in a folder that is there while there are any."""

    folder: Path
    settings: Settings
    """Settings that they depend on besides their keys."""

    def write(self, of: str, key: Key, state: Any) -> None:
        """Keep a state, in the place of the one before.

        Args:
            of: Name of the text.
            key: What tells it from others of the same.
            state: What ``contents`` takes.

        Raises:
            NoRoomError: If the disk is full.
            TypeError: If it cannot be kept.
        """
        self._file(of, key).write(self._settings(of, key), {"state": contents(state)})

    def read(self, of: str, key: Key, like: Callable[[], T]) -> T | None:
        """Return a state that was kept; None if there is none.

        Args:
            of: Name of the text.
            key: What tells it from others of the same.
            like: Makes some state of its kind.

        Raises:
            ValueError: If the file is damaged, or of another run.
        """
        file = self._file(of, key)
        if (found := StateFile(regular(file.path)).read()) is None:
            return None
        settings, state = found
        refuse_others(file.path, settings, self._settings(of, key), KIND)
        try:
            rebuilt: T = made_of(state.get("state"), like())
        except ValueError as err:
            raise file.damaged(str(err)) from err
        return rebuilt

    def remove(self, of: str) -> None:
        """Remove all that is kept of a text."""
        self._remove(f"{digest(of)}-*")

    def clear(self) -> None:
        """Remove all checkpoints, and half-written files of a killed run."""
        self._remove("*")

    def _remove(self, names: str) -> None:
        if not self.folder.exists():  # next to always, and a pattern is slow
            return
        for path in self.folder.glob(f"{names}{_END}*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or not empty
            self.folder.rmdir()

    def _settings(self, of: str, key: Key) -> Settings:
        return {**self.settings, "of": of, "key": [*key]}

    def _file(self, of: str, key: Key) -> StateFile:
        which = json.dumps(plain(self._settings(of, key)), sort_keys=True)
        return StateFile(self.folder / f"{digest(of)}-{digest(which)}{_END}")
