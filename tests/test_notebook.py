"""The notebook of the examples runs from its first cell to its last."""

import json

import pytest

from tests.conftest import PROJECT


@pytest.mark.nightly
def test_it_runs(tmp_path, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((PROJECT / "examples/first_steps.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    pyplot.close("all")
    said = capsys.readouterr().out
    assert "token_perplexity" in said
    assert "predicts these texts better" in said
