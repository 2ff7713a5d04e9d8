"""The package as users get it: uploads, clean installs, and others beside it."""

import json
import shutil
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from trove_classifiers import classifiers

import lm_latent_eval
from hatch_build import readme
from tests.conftest import PROJECT
from tests.environment import Environment

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def editable_install(tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("editable_env"))
    environment.install("-e", str(PROJECT))
    assert environment.imported_from() == PROJECT / "lm_latent_eval"
    return environment


def test_wheel_holds_what_it_should(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    bridge = {"lm_latent_eval_bridge.pth", "lm_latent_eval_bridge.py"}
    assert {"lm_latent_eval/py.typed", *bridge} <= names
    top = {name.partition("/")[0] for name in names}
    beside = {name for name in top if name != "lm_latent_eval" and "-" not in name}
    assert beside == bridge
    source = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "lm_latent_eval").rglob("*")
        if path.suffix in {".py", ".json", ".safetensors", ".bz2"}
    } - {"lm_latent_eval/harness/bridge.py"}  # beside the package
    assert source <= names, "package data is missing"
    for folder, least in (("metrics", 4 * 5), ("tasks", 12)):
        listed = {
            f"lm_latent_eval/{path.relative_to(PROJECT)}"
            for path in (PROJECT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert listed == {n for n in names if n.startswith(f"lm_latent_eval/{folder}/")}
        assert len(listed) >= least


INSTALLED = """
import os, sys
from importlib.metadata import distribution

names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
assert names.count("lm_latent_eval_bridge") == 1, names
import lm_eval.models
from lm_eval.api.registry import get_model
mine = distribution("lm-latent-eval").entry_points
ours = mine.select(group="lm_eval.models")
assert "latent_kglm" in ours.names
assert "lm_latent_eval.harness.backends" not in sys.modules
for entry in ours:
    assert get_model(entry.name) is entry.load(), entry

import evaluate
import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.folders import METRICS
found = [evaluate.load(lm_latent_eval.metric_path(name)).name for name in METRICS]
assert found == list(METRICS), found
[tasks] = mine.select(group="lm_eval.tasks")
assert tasks.load()() == lm_latent_eval.task_path()
print(lm_latent_eval.metric_path("information_rate"))
main(["tasks"])
"""


@pytest.mark.parametrize("installed", ["wheel_install", "editable_install"])
def test_backends_metrics_and_tasks_are_found(installed, request, tmp_path):
    install = request.getfixturevalue(installed)
    metric, tasks = map(
        Path, install.run("-c", INSTALLED, cwd=tmp_path).splitlines()[-2:]
    )
    assert metric.parent.parent in (install.imported_from(), PROJECT)
    assert tasks.parent in (install.imported_from(), PROJECT)
    assert (tasks / "demo" / "latent_demo.yaml").is_file()


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


def test_the_source_archive_holds_what_it_should_and_says_what_the_wheel_does(
    sdist, wheel
):
    with tarfile.open(sdist) as archive:
        listed = [name.partition("/") for name in archive.getnames()]
        [info] = [n for n in archive.getnames() if n.endswith("/PKG-INFO")]
        of_source = message_from_bytes(archive.extractfile(info).read())
    assert {folder for folder, _, _ in listed} == {
        f"lm_latent_eval-{lm_latent_eval.__version__}"
    }
    names = {name for _, _, name in listed}
    assert {name.partition("/")[0] for name in names} == TOP
    for folder in ("lm_latent_eval", "metrics", "tasks", "tests", "docs", "examples"):
        source = {
            path.relative_to(PROJECT).as_posix()
            for path in (PROJECT / folder).rglob("*")
            if path.suffix in SOURCES and "__pycache__" not in path.parts
        }
        assert source <= names, folder
    made = ("__pycache__", ".pyc", ".venv", ".pytest_cache", ".git/", "results/")
    uploaded = [name for name in names if not name.startswith("docs/results/")]
    assert not [name for name in uploaded for part in made if part in name]

    with zipfile.ZipFile(wheel) as archive:
        [info] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        said = message_from_bytes(archive.read(info))
    assert said.items() == of_source.items()
    assert said["Version"] == lm_latent_eval.__version__
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


def test_readers_of_pypi_are_shown_no_checkout():
    shown = readme((PROJECT / "README.md").read_text("utf-8"), None)
    assert "make demo" not in shown
    assert shown.index("pip install 'lm-latent-eval[report]'") < 1000


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == lm_latent_eval.__version__
    bibtex = f"version = {{{lm_latent_eval.__version__}}}"
    assert bibtex in (PROJECT / "README.md").read_text("utf-8")
    assert cited["license"] == "Apache-2.0"
    changes = (PROJECT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## [{cited['version']}] - " in changes


PERPLEXITY = "latent_perplexity"
EXAMPLES = {
    "hmm": (PERPLEXITY, "auto", ("the cat saw a dog", "a dog ran")),
    "mixture": (PERPLEXITY, "exact", ("the cat saw a dog", "a dog ran")),
    "state_space": (PERPLEXITY, "smc", ("17 19 18 22", "30 31 29")),
    "vae": (PERPLEXITY, "is", ("the cat saw a dog", "a dog ran")),
    "semi_markov": (PERPLEXITY, "auto", ("the cat saw a dog", "a dog ran")),
    "pointer": (PERPLEXITY, "auto", ("the cat saw a dog", "a dog ran")),
    "transducer": ("transducer", "auto", ()),
    "rag": ("rag", "auto", ()),
}
"""Its task, its first estimator, and its texts; it has its own task if it has none."""
STEPS = "semi_markov", "pointer", "transducer"
"""Models of one package, ``steps``."""


@pytest.fixture(scope="module")
def environment(wheel_install):
    for name in {"steps", *EXAMPLES} - {*STEPS}:
        wheel_install.install(str(PROJECT / "examples" / name))
    return wheel_install


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_own_tests_pass_and_the_stock_command_scores_it(
    environment, name, tmp_path
):
    package, asked = ("steps", (name,)) if name in STEPS else (name, ())
    folder = PROJECT / "examples" / package / "tests"
    options = (
        "-q",
        "-k",
        name if asked else "",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
    )
    said = environment.run("-m", "pytest", *options, str(folder), cwd=tmp_path)
    assert "passed" in said
    task, estimator, texts = EXAMPLES[name]
    environment.run("-m", f"latent_{package}", *asked, "model", cwd=tmp_path)
    if texts:
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        code = "import lm_latent_eval; print(lm_latent_eval.task_path())"
        tasks = environment.run("-c", code, cwd=tmp_path).strip()
    else:
        own = PROJECT / "examples" / package / "task"
        shutil.copytree(own, tmp_path, dirs_exist_ok=True)
        tasks = "."
    environment.run(
        str(environment.lm_eval),
        *("--model", "latent"),
        *("--model_args", "pretrained=model"),
        *("--tasks", task),
        *("--include_path", tasks),
        *("--metadata", json.dumps({"text_file": "texts.txt"} if texts else {})),
        *("--output_path", "results"),
        cwd=tmp_path,
    )
    (written,) = (tmp_path / "results").rglob("results_*.json")
    content = json.loads(written.read_text())
    assert content["config"]["model"] == "latent"
    ours = content["config"]["latent_eval"]
    assert ours["estimator"] == estimator
    results = content["results"][task]
    if texts:
        assert ours["requests"] == len(texts)
        assert results["token_perplexity,none"] > 1
    else:
        assert ours["conditional_on"]
        assert results["acc,none"] > 0.5, "what is given is read"
