"""Tiny checkpoints on disk, shared by the tests of the harness side."""

from __future__ import annotations

import pytest

from tests import stock_tasks, tiny_checkpoint
from tests.conftest import PROJECT
from tests.environment import Environment, pip


@pytest.fixture(scope="session")
def model():
    """Return the tiny KGLM of the checkpoint ``tiny``."""
    return tiny_checkpoint.kglm()


@pytest.fixture(scope="session")
def tiny(kglm_directory):
    """Return the directory of a tiny KGLM in float64."""
    return str(kglm_directory)


@pytest.fixture(scope="session")
def tiny_spelled(spelled_directory):
    """Return the directory of the tiny KGLM with an orthography."""
    return str(spelled_directory)


@pytest.fixture(scope="session")
def tiny_lstm(lstm_directory):
    """Return the directory of a tiny LSTM in float64."""
    return str(lstm_directory)


@pytest.fixture
def backend(tiny):
    """Return a function that opens the tiny KGLM with other settings.

    By importance sampling, unless they say otherwise: its tiny texts would be exact.
    """
    from lm_latent_eval.harness.backends import LatentKGLM

    return lambda **settings: LatentKGLM(
        **{"pretrained": tiny, "estimator": "is", **settings}
    )


@pytest.fixture
def stock_data(tmp_path, monkeypatch):
    """Data sets in the working directory, and lm-eval's caches nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    stock_tasks.write_stock_data()


@pytest.fixture
def evaluate_stock(tiny, stock_data):
    """Return a function that evaluates stock tasks in process."""
    from lm_latent_eval.harness.backends import LatentKGLM

    def run(**options):
        return stock_tasks.evaluated(
            LatentKGLM(pretrained=tiny, num_samples=12), **options
        )

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Return the package as a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(PROJECT), "--no-build-isolation", "-w", str(folder))
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def wheel_install(wheel, tmp_path_factory):
    """Return a clean environment with the wheel."""
    environment = Environment(tmp_path_factory.mktemp("wheel_env"))
    environment.install(str(wheel))
    assert environment.imported_from().is_relative_to(environment.root)
    return environment
