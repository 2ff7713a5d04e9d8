"""Tiny checkpoints on disk, shared by the tests of the harness side."""

from functools import cache

import pytest
from torch.utils import collect_env

from tests import stock_tasks, tiny_checkpoint
from tests.conftest import PROJECT
from tests.environment import Environment, pip
from tests.tiny_checkpoint import Truth

EVERY_WALK = 17_000
"""A beam of this width holds every walk over six tokens."""


@pytest.fixture(scope="session", autouse=True)
def described_once():
    """lm-eval describes the machine in all results, and asks ten programs about it."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(collect_env.get_pretty_env_info)
        patch.setattr(collect_env, "get_pretty_env_info", once)
        yield


@pytest.fixture(scope="session")
def truth():
    """Return the probabilities of the tiny KGLM, by listing every walk."""
    return Truth(tiny_checkpoint.kglm())


@pytest.fixture
def backend(kglm_directory):
    """Return a function that opens the tiny KGLM with other settings.

    By importance sampling, unless they say otherwise: its tiny texts would be exact.
    """
    from lm_latent_eval.harness.backends import LatentKGLM

    return lambda **settings: LatentKGLM(
        **{"pretrained": kglm_directory, "estimator": "is", **settings}
    )


@pytest.fixture
def exact(backend):
    """Return a backend whose beam holds every walk."""
    return backend(estimator="beam", num_samples=EVERY_WALK)


@pytest.fixture
def stock_data(tmp_path, monkeypatch):
    """Data sets in the working directory, and lm-eval's caches nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    stock_tasks.write_stock_data()


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
