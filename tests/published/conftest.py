"""Models that others have published, where ``make published`` has put them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.published.folders import FOLDER


@pytest.fixture(scope="session")
def published():
    """Return a function from a path in the folder to the file, or skip the test."""

    def find(path: str) -> Path:
        if not (FOLDER / path).exists():
            pytest.skip(f"{path} is not installed: make published")
        return FOLDER / path

    return find


@pytest.fixture
def packages(published, monkeypatch):
    """Return a function that lets a package of the folder be imported."""

    def allow(name: str) -> Path:
        found = published(f"python/{name}")
        monkeypatch.setattr(sys, "path", [*sys.path, str(found.parent)])
        return found

    return allow
