"""What a release uploads: the source archive and the wheel, and what they say."""

from __future__ import annotations

import tarfile
import zipfile
from email import message_from_bytes

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from trove_classifiers import classifiers

import lm_latent_eval
from hatch_build import readme
from tests.conftest import PROJECT

pytestmark = pytest.mark.nightly

TOP = {
    *("lm_latent_eval", "metrics", "tasks", "tests", "docs", "benchmarks", "examples"),
    "worlds",
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"),
    *("SECURITY.md", "Makefile", "constraints.txt", "pyproject.toml"),
    "hatch_build.py",
    *(".github", ".gitignore", "PKG-INFO"),
}
"""What a source archive holds: all that its tests and its documents need."""
SOURCES = {".py", ".json", ".safetensors", ".yaml", ".md", ".pth", ".cff", ".toml"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Return the path of the source archive."""
    folder = tmp_path_factory.mktemp("sdist")
    [path] = SdistBuilder(str(PROJECT)).build(directory=str(folder))
    return path


@pytest.fixture(scope="module")
def names(sdist):
    """Return the names in the source archive, below its one folder."""
    with tarfile.open(sdist) as archive:
        listed = [name.partition("/") for name in archive.getnames()]
    assert {folder for folder, _, _ in listed} == {
        f"lm_latent_eval-{lm_latent_eval.__version__}"
    }
    return {name for _, _, name in listed}


def test_the_source_archive_holds_what_it_should(names):
    assert {name.partition("/")[0] for name in names} == TOP
    for folder in ("lm_latent_eval", "metrics", "tasks", "tests", "docs", "examples"):
        source = {
            path.relative_to(PROJECT).as_posix()
            for path in (PROJECT / folder).rglob("*")
            if path.suffix in SOURCES and "__pycache__" not in path.parts
        }
        assert source <= names, folder


def test_nothing_that_was_made_here_is_uploaded(names):
    made = ("__pycache__", ".pyc", ".venv", ".pytest_cache", ".git/", "results/")
    allowed = "docs/results/"
    assert not [
        name
        for name in names
        for part in made
        if part in name and not name.startswith(allowed)
    ]


def test_both_say_the_same(sdist, wheel):
    with tarfile.open(sdist) as archive:
        [info] = [n for n in archive.getnames() if n.endswith("/PKG-INFO")]
        of_source = message_from_bytes(archive.extractfile(info).read())
    with zipfile.ZipFile(wheel) as archive:
        [info] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        said = message_from_bytes(archive.read(info))
    assert said.items() == of_source.items()
    assert said["Version"] == lm_latent_eval.__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    shown = said.get_payload(decode=True).decode()
    assert shown == readme((PROJECT / "README.md").read_text("utf-8"), None)
    assert "](docs/" not in shown
    assert set(said.get_all("Classifier")) <= classifiers
    assert {*said.get_all("Provides-Extra")} >= {"completion", "ngram", "report"}


def test_links_of_the_readme_lead_somewhere_on_pypi():
    text = "[a](docs/a.md#b), [c](https://c.org) and [d](#d)"
    assert readme("![e](f.png)", None).startswith("e (`f.png`)\n")
    rest = "[c](https://c.org) and [d](#d)"
    assert readme(text, None).startswith(f"a (`docs/a.md#b`), {rest}\nPaths are")
    linked = readme(text, "https://here.org/blob/v1/")
    assert linked == f"[a](https://here.org/blob/v1/docs/a.md#b), {rest}"


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == lm_latent_eval.__version__
    assert cited["license"] == "Apache-2.0"
    changes = (PROJECT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## [{cited['version']}] - " in changes
