"""The directories of tiny models, and the models."""

import pytest

from tests.fuzz.models import WRITE


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return the checkpoint directories of tiny models, by name."""
    root = tmp_path_factory.mktemp("fuzz")
    return {name: str(write(root / name)) for name, write in WRITE.items()}


@pytest.fixture(scope="session")
def opened(folders):
    """Return the tiny models, ready to score strings, by name."""
    from lm_latent_eval.scoring.model import load

    return {name: load(folder) for name, folder in folders.items()}
