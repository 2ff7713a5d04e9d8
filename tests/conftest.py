"""What every test shares: no network, and the folders of real text and golden numbers.

``LATENT_EVAL_DATA`` and ``LATENT_EVAL_GOLDEN`` name those folders; without them they
are looked for beside the project, in ``../shared/data`` and ``../shared/golden``.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before any test imports a Hugging Face library: they read these on import.
for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Before torch is imported, and for every process that a test starts: threads of tiny
# tensors mostly wait for each other, and each worker would have as many as processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled loops check their indices in every test, and are compiled once for all.
os.environ.setdefault("NUMBA_BOUNDSCHECK", "1")
# Workers of one machine would write the same files where evaluate copies metrics to
# (and evaluate cuts paths at their first ".py").
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["HF_MODULES_CACHE"] = str(
        Path(__file__).parents[1] / ".cache" / "modules" / _worker
    )

# Examples are not timed: the machine may be busy with something else. `make fuzz` looks
# for more of them.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.register_profile("fuzz", deadline=None, max_examples=2_000)
settings.load_profile("untimed")

PROJECT = Path(__file__).parents[1]


def find_folder(variable: str, default: str) -> Path:
    """Return a folder of test material, or skip the test (in CI: fail)."""
    named = os.environ.get(variable)
    folder = Path(named) if named else PROJECT.parent / "shared" / default
    if folder.is_dir():
        return folder.resolve()
    reason = f"no folder {folder}: set {variable} to where the {default} folder is"
    if named or os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


WITHOUT_FOLDERS = {
    "tests/models/entitynlm/test_data.py": ["test_a_real_corpus_is_read"],
    "tests/models/kglm/test_published.py": [
        "test_documents_are_read_as_the_original_reads_them[archive]",
        "test_every_factor_of_the_published_documents[archive]",
        "test_totals_of_the_published_documents[archive]",
    ],
    "tests/models/rnng/test_data.py": [
        "test_the_treebank_at_hand[8-1563]",
        "test_the_treebank_at_hand[1-13263]",
    ],
}
"""Tests that runs hosted by GitHub skip: they have none of the two folders."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of the folders by name, where GitHub runs them."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for item in items:
        if item.name in WITHOUT_FOLDERS.get(item.nodeid.partition("::")[0], ()):
            reason = f"{item.name}: hosted runs have no data and no golden numbers"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def refused(capsys):
    """Return what runs a command that is refused in one line, and returns the line."""
    from lm_latent_eval.cli import main

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("lm-latent-eval: ") and said.count("\n") == 1, said
        return said

    return run


@pytest.fixture
def svg_alone(monkeypatch):
    """Write figures as SVG alone: PNG and PDF take most of the time."""
    from lm_latent_eval.report import figures

    monkeypatch.setattr(figures, "_UNDATED", {"svg": figures._UNDATED["svg"]})


@pytest.fixture(scope="session")
def kglm_directory(tmp_path_factory) -> Path:
    """Return the directory of a tiny KGLM in float64; nobody may change it."""
    from tests import tiny_checkpoint

    folder = tmp_path_factory.mktemp("kglm")
    return tiny_checkpoint.write(folder, tiny_checkpoint.kglm())


@pytest.fixture(scope="session")
def spelled_directory(tmp_path_factory) -> Path:
    """Return the directory of the same with an orthography; nobody may change it."""
    from tests import tiny_checkpoint

    folder, writing = tmp_path_factory.mktemp("spelled"), tiny_checkpoint.orthography()
    return tiny_checkpoint.write(folder, tiny_checkpoint.kglm(), writing)


@pytest.fixture(scope="session")
def lstm_directory(tmp_path_factory) -> Path:
    """Return the directory of a tiny LSTM in float64; nobody may change it."""
    from tests import tiny_checkpoint

    folder = tmp_path_factory.mktemp("lstm")
    return tiny_checkpoint.write(folder, tiny_checkpoint.lstm())


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of real text."""
    return find_folder("LATENT_EVAL_DATA", "data")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Return the folder of numbers from the original implementations."""
    return find_folder("LATENT_EVAL_GOLDEN", "golden")
