"""What the simulated device was asked for, and by which lines."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import lm_latent_eval

_PACKAGE = Path(lm_latent_eval.__file__).parent


@dataclass
class Work:
    """What a device was asked for."""

    launches: Counter[str] = field(default_factory=Counter)
    """Operations by name, without views, which launch nothing."""
    waits: Counter[str] = field(default_factory=Counter)
    """Synchronisations of the host with the device, copies either way among them, by
    what was asked for and the line of this package that asked."""

    @property
    def num_launches(self) -> int:
        """How many operations."""
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        """How many synchronisations."""
        return self.waits.total()

    def waited(self, what: str) -> None:
        """Count a synchronisation."""
        self.waits[f"{what} in {_line()}"] += 1


def _line() -> str:
    """Return the innermost line of the package, but for tests, that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if name := _in_package(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a caller"


@cache
def _in_package(file: str) -> str | None:
    path = Path(file)
    if _PACKAGE in path.parents:
        return str(path.relative_to(_PACKAGE))
    return None
