"""What a function is given and gives while a test runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def watch(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    note: Callable[..., Any],
    noted: list[Any] | None = None,
) -> list[Any]:
    """Return a list, new or given, of ``note(result, *arguments)`` of every call."""
    noted = [] if noted is None else noted
    function = getattr(owner, name)

    def watching(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        noted.append(note(result, *arguments))
        return result

    patch.setattr(owner, name, watching)
    return noted
