"""Every test of this folder keeps the law, and says what it has tried."""

from __future__ import annotations

import pytest

from tests.fuzz import law, models


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Count what the test tries; ``tests/conftest.py`` adds it up."""
    law.tally.__init__()
    try:
        return (yield)
    finally:
        found = law.tally
        item.user_properties += [
            ("fuzz inputs", found.inputs),
            ("fuzz refused", found.refused),
            ("fuzz tracebacks", len(found.tracebacks)),
            ("fuzz silent differences", len(found.differences)),
        ]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return the checkpoint directories of tiny models, by name."""
    root = tmp_path_factory.mktemp("fuzz")
    return {name: write(root / name) for name, write in models.WRITE.items()}


@pytest.fixture(scope="session")
def opened(folders):
    """Return the tiny models, ready to score strings, by name."""
    from lm_latent_eval.scoring.model import load

    return {name: load(folder) for name, folder in folders.items()}
