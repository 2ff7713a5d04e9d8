"""Measures of saved columns: their numbers, their files, and what they leave out."""

import json
import re

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.report.measures import MEASURES, Comparison
from lm_latent_eval.distortion.report.style import write_json
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    JointHistogram,
    LengthErrors,
)
from lm_latent_eval.report.tabular import rendered
from tests.distortion.report.saved import (
    columns,
    language,
    save,
    written,
)
from tests.means import normal

TRUE = language()
MODEL = 1.1 * TRUE - normal(400, seed=1, sd=0.2).abs()


@pytest.fixture
def scores(tmp_path):
    return save(tmp_path / "scores", columns(TRUE, MODEL))


def measured(name, folders, tmp_path):
    stem = tmp_path / "out" / name
    said = rendered(MEASURES[name](folders, stem, 10), "text")
    found = json.loads(stem.with_name(f"{name}.json").read_text())
    assert stem.with_name(f"{name}.svg").stat().st_size > 1000
    return said, found


CURVE = ErrorCurve.of(TRUE, MODEL, num_bins=10)
TENTHS = ErrorCurve.of(TRUE, MODEL, bins="count", num_bins=10).bins
OVER = ErrorCurve.of(TRUE, TRUE + 1.0, num_bins=10)
HISTOGRAM = JointHistogram.of(TRUE, MODEL, num_bins=10)
ERRORS = (
    CURVE.mean_error,
    TENTHS[0].mean_error,
    TENTHS[0].lower,
    TENTHS[-1].mean_error,
    100 * CURVE.share_underestimated,
)
LENGTHS = LengthErrors.of(TRUE, MODEL, columns(TRUE, MODEL).num_tokens.long())
OF_COLUMNS = [
    ("random", {"mine": "random"}, {"mine": OVER}),
    ("lengths", {"mine": "scores"}, {"mine": LENGTHS}),
    ("errors", {"mine": "scores"}, {"mine": {"curve": CURVE, "histogram": HISTOGRAM}}),
]


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.parametrize(("name", "folders", "expected"), OF_COLUMNS)
def test_statistics_are_those_of_the_columns(tmp_path, name, folders, expected):
    for folder, model in (("scores", MODEL), ("random", TRUE + 1.0)):
        save(tmp_path / folder, columns(TRUE, model))
    given = {label: tmp_path / folder for label, folder in folders.items()}
    said, found = measured(name, given, tmp_path)
    write_json(tmp_path / "expected", expected)
    known = json.loads((tmp_path / "expected.json").read_text())
    assert {label: found[label] for label in expected} == known
    if name == "errors":
        row = next(line for line in said.splitlines() if line.startswith("| mine"))
        assert [x for x in ERRORS if f"{x:.4g}" not in row] == []
    if name == "lengths":
        assert said.count("| mine |") == len(LENGTHS.lengths) > 2


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("perturbed", ["a", "b"], "a map is of one model; got a, b"),
    ],
)
def test_folders_that_a_measure_does_not_take(scores, tmp_path, name, labels, message):
    with pytest.raises(ValueError, match=message):
        MEASURES[name](dict.fromkeys(labels, scores), tmp_path / "x", 10)


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.parametrize("name", ["errors", "lengths", "perturbed"])
def test_an_estimate_may_be_above_one(tmp_path, name):
    model = MODEL.clone()
    model[0] = 0.002
    found = columns(TRUE, model, stderr=torch.full((len(TRUE),), 0.01).double())
    folder = save(tmp_path / "scores", found, bound="stochastic lower")
    assert MEASURES[name]({"mine": folder}, tmp_path / "out", 10).rows


@pytest.mark.usefixtures("svg_alone")
def test_a_beam_has_an_unknown_bias_and_few_sequences_no_interval(tmp_path):
    few = columns(TRUE[:40], MODEL[:40])
    folder = save(tmp_path / "scores", few, bound="strict lower")
    table = MEASURES["random"]({"mine": folder}, tmp_path / "out", 2)
    [row] = rendered(table, "text").splitlines()[2:]
    assert "| unknown |" in row
    assert row.count(" to ") == 1, "of all, and of no tenth"


@pytest.mark.usefixtures("svg_alone")
def test_perturbed(tmp_path):
    edits = torch.arange(3, dtype=torch.int16).repeat(100)
    index = torch.arange(100).repeat_interleave(3)
    true = (language(100).repeat_interleave(3) - 2.0 * edits).double()
    model = true - 1.0 + edits
    true[4] = -torch.inf  # impossible after one perturbation
    model[8] = -torch.inf  # ruled out after two
    folder = save(tmp_path / "scores", columns(true, model, edits=edits, index=index))
    _, found = measured("perturbed", {"mine": folder}, tmp_path)
    rows = found["rows"]
    assert [row["edits"] for row in rows] == [0, 1, 2]
    assert [row["mean_error"] for row in rows] == pytest.approx([-1, 0, 1], abs=1e-12)
    assert [row["impossible"] for row in rows] == [0, 1, 0]
    assert [row["ruled_out"] for row in rows] == [0, 0, 1]
    assert sum(cell["count"] for cell in found["cells"]) == 298


@pytest.mark.usefixtures("svg_alone")
def test_what_has_no_error_is_counted(tmp_path):
    true, model = TRUE.clone(), MODEL.clone()
    true[:3] = -torch.inf
    model[2:7] = -torch.inf
    ended = torch.ones(400, dtype=torch.bool)
    ended[100:102] = False
    folder = save(tmp_path / "scores", columns(true, model, ended=ended))
    found = Comparison.open(folder)
    assert (found.impossible, found.ruled_out, len(found.columns)) == (3, 4, 393)
    said = rendered(MEASURES["errors"]({"mine": folder}, tmp_path / "out", 10), "text")
    counts = r"mine: 3 impossible .*, 4 ruled out by the model .*, 2 cut at the maximum"
    assert re.search(counts, said)
    curve = ErrorCurve.of(TRUE[7:], MODEL[7:], num_bins=10)
    assert found.curve(num_bins=10).mean_error == pytest.approx(curve.mean_error)
    nothing = columns(true[:2], model[:2])
    with pytest.raises(ValueError, match="none of 2 sequences is possible under both"):
        Comparison.of(nothing)


def test_the_command(scores, tmp_path, capsys, request):
    out = str(tmp_path / "out")
    command = ["distort", "measure", "random", "--output", out]
    assert main([*command, f"A={scores}"]) == 0
    assert "| A | 400 |" in capsys.readouterr().out
    assert "<svg" in written(tmp_path / "out" / "random")
    request.getfixturevalue("svg_alone")
    assert main([*command, f"A={scores}", "--format", "csv"]) == 0
    kept = (tmp_path / "out" / "random.csv").read_text("utf-8")
    assert kept == capsys.readouterr().out
    for folders, message in (
        ([str(scores)], "expected NAME=DIR"),
        ([f"A={scores}", f"A={scores}"], "A names two folders"),
        ([f"A={tmp_path}"], "settings.json is missing: no folder of scores is there"),
    ):
        assert main([*command, *folders]) == 2
        assert message in capsys.readouterr().err
