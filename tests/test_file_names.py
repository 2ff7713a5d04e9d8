"""No name that a file brings along leads out of the folder that is written or read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.study.layout import Layout
from lm_latent_eval.files import beside, safe_name
from tests.report.test_compare import questions
from tests.report.test_compare import write as write_record
from tests.report.test_export import BENCHMARK, SETTINGS

HOSTILE = ("../../../victim", "{}/victim", "..\\victim", "..", "", "C:x")


@given(st.text())
def test_a_safe_name_is_one_part_of_a_path(name):
    safe = safe_name(name)
    assert Path("folder", safe).parent == Path("folder")
    assert safe.strip(".") and not set(safe) & set('/\\:*?"<>|\0')
    assert len(safe.encode()) <= 128
    assert safe_name(safe) == safe


@given(st.text(), st.text())
def test_two_names_stay_two(one, other):
    assert (safe_name(one) == safe_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["wikitext", "blimp_adjunct-island.v2", "日本語"])
def test_usual_names_stay(name):
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["../victim", "..", "", "a/b", "/dev/zero", "a\0b", None, 3, ["a"]]
)
def test_a_file_names_others_in_its_own_folder_alone(tmp_path, name):
    with pytest.raises(ValueError, match=r"results\.json names .* no file beside it"):
        beside(tmp_path / "results.json", name)


def test_a_file_beside_another(tmp_path):
    assert beside(tmp_path / "results.json", "a.parquet") == tmp_path / "a.parquet"


def results(folder: Path, task: str, record: str = "record.parquet") -> Path:
    """A result folder of one task, which is called what it likes."""
    folder.mkdir()
    settings = SETTINGS | {"configs": {task: BENCHMARK["q"]}}
    found = questions([True] * 6 + [False] * 2)
    write_record(type(found)(task, settings, found.answers), folder / "record.parquet")
    content = {
        "config": {"latent_eval": {"records": {task: record}}},
        "configs": {task: BENCHMARK["q"]},
    }
    (folder / "results_1.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("task", HOSTILE)
def test_exports_write_below_their_output(tmp_path, task):
    found = results(tmp_path / "results", task.format(tmp_path))
    before, output = {*tmp_path.rglob("*")}, tmp_path / "output"
    for to in ("hf-eval-results", "every-eval-ever"):
        options = ["--model-id", "us/model", "--organization", "Us"]
        options += ["--relationship", "other"]
        if to == "hf-eval-results":
            options = []
        argv = ["export", str(found), "--to", to, "--output", str(output), *options]
        assert main(argv) == 0
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert len(new) == 3, "of one form a file, of the other two"
    assert all(output in path.parents for path in new)


def test_results_read_no_record_from_elsewhere(tmp_path, capsys):
    (tmp_path / "victim.parquet").write_bytes(b"secret")
    for record in ("../victim.parquet", str(tmp_path / "victim.parquet")):
        found = results(tmp_path / f"from {record.count('/')}", "q", record)
        assert main(["recompute", str(found)]) == 2
        assert "which is no file beside it" in capsys.readouterr().err


@pytest.mark.parametrize("name", HOSTILE)
def test_studies_write_below_their_output(tmp_path, name):
    name = name.format(tmp_path)
    found = Layout(tmp_path).latent_scores(name, 3)
    assert found.parent == tmp_path / "latent" / "scores"
