"""Models that others have published, where ``make published`` has put them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.published.folders import FOLDER


@pytest.fixture(scope="session")
def published():
    """Return a function from a path in the folder to the file, or skip the test."""

    def find(path: str) -> Path:
        package = path.split("/")[1] if path.startswith("python/") else "json"
        if not (FOLDER / path).exists() or find_spec(package) is None:
            pytest.skip(f"{path} is not installed: make published")
        return FOLDER / path

    return find
