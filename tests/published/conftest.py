"""Models that others have published, where ``make published`` has put them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.published.folders import FOLDER, sha256


@pytest.fixture(scope="session")
def published():
    """Return a function from a path in the folder to the file, or skip the test.

    Where numbers are of one version, the digest of its file begins with it.
    """

    def find(path: str, version: str = "") -> Path:
        package = path.split("/")[1] if path.startswith("python/") else "json"
        if not (FOLDER / path).exists() or find_spec(package) is None:
            pytest.skip(f"{path} is not installed: make published")
        if version and not sha256(FOLDER / path).startswith(version):
            pytest.skip(f"{path} is of another version than the numbers here")
        return FOLDER / path

    return find
