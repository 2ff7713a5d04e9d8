"""Tiny checkpoints on disk, shared by the tests of the harness side."""

from __future__ import annotations

import pytest
import torch

from tests import tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny tensors gain nothing from threads, and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model():
    """Return the tiny KGLM of the checkpoint ``tiny``."""
    return tiny_checkpoint.kglm()


@pytest.fixture(scope="session")
def tiny(model, tmp_path_factory):
    """Return the directory of a tiny KGLM in float64."""
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("kglm"), model))


@pytest.fixture(scope="session")
def tiny_spelled(model, tmp_path_factory):
    """Return the directory of the tiny KGLM with an orthography."""
    folder = tmp_path_factory.mktemp("spelled")
    return str(tiny_checkpoint.write(folder, model, tiny_checkpoint.orthography()))


@pytest.fixture(scope="session")
def tiny_lstm(tmp_path_factory):
    """Return the directory of a tiny LSTM in float64."""
    folder = tmp_path_factory.mktemp("lstm")
    return str(tiny_checkpoint.write(folder, tiny_checkpoint.lstm()))


@pytest.fixture
def backend(tiny):
    """Return a function that opens the tiny KGLM with other settings."""
    from lm_latent_eval.harness.backends import LatentKGLM

    return lambda **settings: LatentKGLM(pretrained=tiny, **settings)
