"""What a function is given and gives while a test runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def watch(
    patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]
) -> list[Any]:
    """Return a list that grows by ``note(result, *arguments)`` at every call."""
    noted: list[Any] = []
    function = getattr(owner, name)

    def watching(*arguments: Any) -> Any:
        result = function(*arguments)
        noted.append(note(result, *arguments))
        return result

    patch.setattr(owner, name, watching)
    return noted
