"""Checkpoint of a running job, in a file that each epoch replaces."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.durable import replacing
from lm_latent_eval.ledger.settings import Settings


@dataclass(frozen=True)
class StateFile:
    """A file of tensors and plain data that each step of a run replaces."""

    path: Path

    def write(self, settings: Settings, state: dict[str, Any]) -> None:
        """Put the state in the place of the one before.

        Raises:
            NoRoomError: If the disk is full.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # torch hides what the system says of its own files.
        with replacing(self.path) as partial, partial.open("wb") as file:
            torch.save({"settings": json.dumps(settings), **state}, file)

    def read(self) -> tuple[Settings, dict[str, Any]] | None:
        """Return what it depends on and is; None if there is none.

        Raises:
            ValueError: If the file is damaged.
        """
        if not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            return json.loads(state.pop("settings")), state
        except (
            OSError,
            RuntimeError,
            EOFError,
            KeyError,
            pickle.UnpicklingError,
        ) as err:
            raise ValueError(
                f"{self.path} is damaged ({type(err).__name__}): remove the file to "
                "start anew"
            ) from None  # torch advises to run what is in the file

    def set_aside(self) -> Path:
        """Give the file another name, and return that."""
        return self.path.replace(self.path.with_name(f"{self.path.name}.before"))
