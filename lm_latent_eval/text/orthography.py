"""Orthography: spelling and spacing models that make word models models of strings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lm_latent_eval.text import spacing, spelling
from lm_latent_eval.text.spacing import Spacing
from lm_latent_eval.text.spelling import Spelling

FILE_NAMES = (spelling.FILE_NAME, spacing.FILE_NAME)


@dataclass(frozen=True)
class Orthography:
    """The spelling of unknown words and the white space between words."""

    spelling: Spelling
    spacing: Spacing

    def save(self, directory: Path) -> None:
        self.spelling.save(directory)
        self.spacing.save(directory)

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove what another model left in a directory."""
        for name in FILE_NAMES:
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path) -> Orthography | None:
        """Read both files; None if there is neither.

        Raises:
            ValueError: If one of them is missing or damaged.
        """
        if not any((Path(directory) / name).exists() for name in FILE_NAMES):
            return None
        return cls(Spelling.load(directory), Spacing.load(directory))
