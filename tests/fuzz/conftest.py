"""The directories of tiny models, and the models."""

import pytest

from tests import tiny_checkpoint
from tests.fuzz.models import BUILD


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return the checkpoint directories of tiny models, by name."""
    root = tmp_path_factory.mktemp("fuzz")
    for name, build in BUILD.items():
        spelled = name.endswith("_spelled")
        writing = tiny_checkpoint.orthography() if spelled else None
        tiny_checkpoint.write(root / name, build(), writing)
    return {name: str(root / name) for name in BUILD}


@pytest.fixture(scope="session")
def opened(folders):
    """Return the tiny models, ready to score strings, by name."""
    from lm_latent_eval.scoring.model import load

    return {name: load(folder) for name, folder in folders.items()}
