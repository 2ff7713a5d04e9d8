"""What is imported is declared, what is declared is locked; CI runs what we name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from tests.conftest import WITHOUT_FOLDERS
from tests.constraints import FILE, NOT_LOCKED, PROJECT, closure, declared, locked
from tests.test_ladder import imports


def test_every_line_locks_one_version_in_order():
    """Without local versions: every index has torch==2.13.0, one has 2.13.0+cpu."""
    lines = FILE.read_text().splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(set(names)) == [*locked()]
    assert not [line for line in locked().values() if "+" in str(line)]


def test_every_requirement_is_locked_to_a_version_that_it_allows():
    for each in (e for listed in declared().values() for e in listed):
        name = canonicalize_name(each.name)
        if name in NOT_LOCKED:
            continue
        (pin,) = locked()[name].specifier
        assert pin.operator == "=="
        assert each.specifier.contains(pin.version), f"{each} but {locked()[name]}"


def test_everything_that_they_need_is_locked_as_it_is_installed():
    installed = closure([each for listed in declared().values() for each in listed])
    assert len(installed) > len(declared()[""]), "premise: others need others"
    for name, version in installed.items():
        if name not in NOT_LOCKED:
            assert name in locked(), f"{name}=={version} is missing in constraints.txt"
            assert locked()[name].specifier.contains(
                version.public, prereleases=True
            ), f"{locked()[name]} in constraints.txt, but {version} is installed"


def imported(folder: str) -> dict[str, str]:
    """Top-level modules of others -> a file that imports them."""
    found = {
        name.partition(".")[0]: str(path)
        for path in (PROJECT / folder).rglob("*.py")
        for name in imports(path.read_text(encoding="utf-8"))
    }
    known = {*sys.stdlib_module_names, "lm_latent_eval", "metrics"}
    return {name: path for name, path in found.items() if name not in known}


def test_what_is_imported_is_declared():
    distributions = packages_distributions()
    wanted = {
        canonicalize_name(each.name)
        for extra, listed in declared().items()
        for each in listed
        if extra != "dev"
    }
    for module, path in {**imported("lm_latent_eval"), **imported("metrics")}.items():
        of = {canonicalize_name(name) for name in distributions.get(module, [module])}
        assert of & wanted, f"{path} imports {module}, which pyproject.toml lacks"


def test_what_the_networks_of_wrappers_are_loaded_by_is_required():
    """lm-eval leaves to an extra what its `hf` imports."""
    backend = distribution("lm-eval").locate_file("lm_eval/models/huggingface.py")
    imported = re.findall(r"^(?:from|import) (\w+)", backend.read_text("utf-8"), re.M)
    installed = closure(declared()[""])
    owners = packages_distributions()
    for module in {*imported} - sys.stdlib_module_names:
        of = {canonicalize_name(name) for name in owners[module]}
        assert of & installed.keys(), f"{module} comes with an extra alone"


def test_torch_keeps_code_out_of_weights():
    """CVE-2025-32434: before 2.6, weights_only=True did not."""
    torches = [e for listed in declared().values() for e in listed if e.name == "torch"]
    assert len(torches) == 1, "said once, of all installations"
    assert not torches[0].specifier.contains("2.5.1")


# -- continuous integration ------------------------------------------------------------


def jobs_of(workflow: str) -> dict[str, Any]:
    path = PROJECT / ".github" / "workflows" / workflow
    return yaml.safe_load(path.read_text("utf-8"))["jobs"]


JOBS = jobs_of("test.yml")
TARGETS = {"test", "oldest", "newest", "next", "published", "release-check"}


def test_every_job_runs_a_target_of_the_makefile():
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)
    steps = [step for job in JOBS.values() for step in job["steps"][1:]]
    commands = [step["run"].split() for step in steps if "run" in step]
    assert {command[1] for command in commands} == TARGETS <= {*targets}
    assert {command[0] for command in commands} == {"make"}


def test_the_versions_of_python_that_are_named_are_run():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    named = "".join(f"{each}\n" for each in project["classifiers"])
    versions = re.findall(r"Python :: (3\.\d+)$", named, re.MULTILINE)
    assert JOBS["python"]["strategy"]["matrix"]["python"] == versions
    assert project["requires-python"] == f">={versions[0]}"


def test_a_release_runs_every_target():
    jobs = jobs_of("release.yml")
    run = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert "make release-check" in run
    assert "make ${{ matrix.target }}" in jobs["check"]["steps"][-1]["run"]
    assert {*jobs["check"]["strategy"]["matrix"]["target"]} == TARGETS - {
        "release-check"
    }
    assert {*jobs["publish"]["needs"]} == {"check", "build"}


def test_environments_by_uv_have_no_cuda():
    """uv reads none of pip's variables."""
    command = ["make", "--eval", "show:; @echo $$UV_TORCH_BACKEND", "-s", "show"]
    others = {k: v for k, v in os.environ.items() if k != "UV_TORCH_BACKEND"}
    for more, expected in (({}, "cpu"), ({"UV_TORCH_BACKEND": "auto"}, "auto")):
        said = subprocess.check_output(
            command, cwd=PROJECT, env=others | more, text=True
        )
        assert said.split() == [expected]


HOSTED = {"CI": "true", "GITHUB_ACTIONS": "true"}


@pytest.mark.parametrize(
    ("given", "said"), [(HOSTED, "skipped"), ({"CI": "true"}, "error")]
)
def test_runs_without_the_folders(tmp_path, given, said):
    """Hosted ones skip what needs them, by name; ours fail."""
    file = "tests/models/entitynlm/test_data.py"
    [test] = WITHOUT_FOLDERS[file]
    kept = {name: v for name, v in os.environ.items() if name not in HOSTED}
    absent = {"LATENT_EVAL_DATA": str(tmp_path / "absent")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-rsE", "-q", f"{file}::{test}"],
        env=kept | absent | given,
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert f"1 {said}" in done.stdout, done.stdout + done.stderr
    assert test in done.stdout
    assert (done.returncode == 0) == (said == "skipped")


def test_what_hosted_runs_skip_is_what_asks_for_the_folders():
    asks = {
        path.relative_to(PROJECT).as_posix(): text
        for path in (PROJECT / "tests").rglob("test_*.py")
        if re.search(r"\b(data|golden)_dir\b", text := path.read_text("utf-8"))
    }
    assert asks.keys() == WITHOUT_FOLDERS.keys()
    for path, tests in WITHOUT_FOLDERS.items():
        assert all(f"def {test.partition('[')[0]}(" in asks[path] for test in tests)
