"""Benchmarks run: what they import is there, and short ones work."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SMALLEST = {
    "estimators": "--texts 1 --kinds shuffled --methods is,2 --reference is,3",
    "throughput": "--texts 1 --num-samples 2 --estimator is",
    "price": "--texts 1 --models EntityNLM --words 5",
    "verdicts": "--trials 20 --only clusters",
}
"""Arguments of what takes seconds; of others nothing but their help is asked for."""
NEEDS = {"genlm_bytes": "genlm"}
"""Benchmark -> a package that no extra of ours installs."""
SCRIPTS = [
    path
    for path in sorted((PROJECT / "benchmarks").glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


@pytest.mark.nightly
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path, monkeypatch, capsys):
    if (needed := NEEDS.get(path.stem)) and find_spec(needed) is None:
        pytest.skip(f"{needed} is missing")
    words = SMALLEST.get(path.stem, "--help").split()
    if path.stem == "estimators":
        words += ["--output", str(tmp_path)]
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        assert not end.code and words == ["--help"]
    assert capsys.readouterr().out
