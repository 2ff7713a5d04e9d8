"""What continuous integration runs: targets that there are, versions that we name."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.conftest import PROJECT

JOBS = yaml.safe_load((PROJECT / ".github/workflows/test.yml").read_text("utf-8"))[
    "jobs"
]


def test_every_job_runs_a_target_of_the_makefile():
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)
    commands = [
        step["run"]
        for job in JOBS.values()
        for step in job["steps"][1:]
        if "run" in step
    ]
    assert (
        {command.split()[1] for command in commands}
        == {
            "test",
            "oldest",
            "newest",
            "next",
            "published",
            "release-check",
        }
        <= {*targets}
    )
    assert all(command.startswith("make ") for command in commands)


def test_the_versions_of_python_that_are_named_are_run():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    named = "".join(f"{each}\n" for each in project["classifiers"])
    versions = re.findall(r"Python :: (3\.\d+)$", named, re.MULTILINE)
    assert JOBS["python"]["strategy"]["matrix"]["python"] == versions
    assert project["requires-python"] == f">={versions[0]}"
