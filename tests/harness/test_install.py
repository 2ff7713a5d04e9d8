"""The package as users get it: a wheel and an editable install, both clean."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.environment import Environment

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def editable_install(tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("editable_env"))
    environment.install("-e", str(PROJECT))
    assert environment.imported_from() == PROJECT / "lm_latent_eval"
    return environment


@pytest.fixture(params=["wheel_install", "editable_install"])
def install(request):
    return request.getfixturevalue(request.param)


def test_wheel_holds_what_it_should(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "lm_latent_eval/__init__.py",
        "lm_latent_eval/py.typed",
        "lm_latent_eval_bridge.pth",
        "lm_latent_eval_bridge.py",
    } <= names
    assert [name for name in names if name.endswith(".pth")] == [
        "lm_latent_eval_bridge.pth"
    ]
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.startswith("lm_latent_eval")} == set()
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


def test_get_model_resolves_every_entry_point(install):
    code = """
from importlib.metadata import distribution
import sys
import lm_eval.models
from lm_eval.api.registry import get_model
ours = distribution("lm-latent-eval").entry_points.select(group="lm_eval.models")
assert "latent_kglm" in ours.names
assert "lm_latent_eval.harness.backends" not in sys.modules
for entry in ours:
    assert get_model(entry.name) is entry.load(), entry
"""
    install.run("-c", code)


def test_evaluate_loads_every_metric_by_name(install):
    code = """
import evaluate
import lm_latent_eval
from lm_latent_eval.metric import METRICS
names = [evaluate.load(lm_latent_eval.metric_path(name)).name for name in METRICS]
assert names == list(METRICS), names
print(lm_latent_eval.metric_path("information_rate"))
"""
    found = Path(install.run("-c", code, cwd=install.root).strip())
    assert found.parent.parent in (install.imported_from(), PROJECT)


def test_the_bridge_is_installed_once(install):
    code = """
import sys
names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
assert names.count("lm_latent_eval_bridge") == 1, names
"""
    install.run("-c", code)


def test_the_switch_leaves_lm_eval_as_it_was(install):
    code = """
import os
os.environ["LM_LATENT_EVAL_NO_BRIDGE"] = "1"
import lm_eval.models
from lm_eval.api.registry import model_registry
assert "hf" in model_registry
assert not [name for name in model_registry if name.startswith("latent_")]
"""
    install.run("-c", code)


def test_every_installation_knows_its_task_files(install, tmp_path):
    code = """
from importlib.metadata import distribution
import lm_latent_eval
[tasks] = distribution("lm-latent-eval").entry_points.select(group="lm_eval.tasks")
assert tasks.load()() == lm_latent_eval.task_path()
from lm_latent_eval.cli import main
main(["tasks"])
"""
    folder = Path(install.run("-c", code, cwd=tmp_path).strip())
    assert folder.parent in (install.imported_from(), PROJECT)
    assert (folder / "demo" / "latent_demo.yaml").is_file()


def test_stock_command_runs_the_demo_in_an_empty_directory(wheel_install, tmp_path):
    """As README has it for who installed with pip."""
    code = "from lm_latent_eval.cli import main; main(['tasks'])"
    tasks = wheel_install.run("-c", code, cwd=tmp_path).strip()
    wheel_install.run(
        str(wheel_install.lm_eval),
        *("--model", "latent_kglm"),
        *("--tasks", "latent_demo"),
        *("--include_path", tasks),
        *("--limit", "2"),
        *("--output_path", "results"),
        cwd=tmp_path,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"results"}
    (written,) = tmp_path.rglob("results_*.json")
    results = json.loads(written.read_text())
    assert results["config"]["model"] == "latent_kglm"
    assert results["n-samples"]["latent_demo"]["effective"] == 2
    numbers = [v for v in results["results"]["latent_demo"].values() if v is not None]
    assert any(isinstance(value, float) and value > 0 for value in numbers)


def test_uninstalling_takes_the_bridge_along(wheel, tmp_path):
    environment = Environment(tmp_path / "environment")
    before = {path.name for path in environment.site_packages.iterdir()}
    environment.install(str(wheel))
    assert (environment.site_packages / "lm_latent_eval_bridge.pth").is_file()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment.python)),
            *("uninstall", "-y", "lm-latent-eval"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in environment.site_packages.iterdir()} == before
