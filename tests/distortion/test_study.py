"""``examples/distortion/study.py``: its verdicts, and its smallest form as it runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch

from lm_latent_eval.distortion.measure import Measured
from lm_latent_eval.distortion.statistics import ErrorCurve
from tests.conftest import PROJECT
from tests.means import normal, uniform

SCRIPT = PROJECT / "examples" / "distortion" / "study.py"
TRUE = 4 * uniform(600, 3, seed=0).log().sum(-1) - 5


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("distortion_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def scores(error, true=TRUE) -> pd.DataFrame:
    return pd.DataFrame({"true_log_p": true, "model_log_p": true + error})


def measured(model) -> Measured:
    tenths = ErrorCurve.of(TRUE, model, bins="count", num_bins=10)
    [whole] = ErrorCurve.of(TRUE, model, bins="count", num_bins=1).bins.itertuples()
    row = {
        "mean_error": whole.mean_error,
        "lower": whole.lower,
        "upper": whole.upper,
        "share_underestimated": tenths.share_underestimated,
        "num_sequences": len(TRUE),
    }
    return Measured({}, "exact", None, tenths, None, None, None, None, (row,))


NOISE = normal(600, seed=1)
ERRORS = {
    "low": (NOISE - 1, "holds"),
    "high": (NOISE + 1, "fails"),
    "right": (NOISE - NOISE.mean(), "undecided"),
    # Below 0 on average, but not most: a few are far off.
    "skewed": (torch.where(torch.arange(600) < 100, -9.0, 0.5) + 0.1, "fails"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_underestimation_is_of_the_mean_and_of_most(study, name):
    error, expected = ERRORS[name]
    assert study.underestimated(measured(TRUE + error))[0] == expected


@pytest.mark.parametrize(
    ("slope", "expected"), [(0.2, "holds"), (-0.2, "fails"), (0.0, "undecided")]
)
def test_rarity(study, slope, expected):
    error = slope * TRUE + NOISE.where(torch.tensor(slope != 0), 0.1 * NOISE)
    assert study.rarer_worse(measured(TRUE + error))[0] == expected


def test_more_data(study):
    for few, many, expected in (
        (NOISE - 5, NOISE - 2, "holds"),
        (NOISE - 2, NOISE - 5, "fails"),
        (NOISE - 5, NOISE + 2, "fails"),
        (NOISE - 5, NOISE - NOISE.mean(), "undecided"),
    ):
        assert study.lessened(scores(few), scores(many))[0] == expected


def test_entropies_compare_at_equal_probability(study):
    """The colder language has more probable sequences, which alone decides nothing."""
    warm = 1.5 * TRUE
    for shift, expected in ((-2, "holds"), (2, "fails")):
        cold = scores(0.2 * TRUE + shift + NOISE)
        found = study.worse_when_cold(cold, scores(0.2 * warm + NOISE, warm))
        assert found[0] == expected
        difference = float(found[1].split()[0])
        assert difference == pytest.approx(shift, abs=0.5)
    apart = scores(NOISE, TRUE - 1000)
    assert study.worse_when_cold(scores(NOISE), apart)[0] == "undecided"


@pytest.mark.nightly
def test_the_smallest_form(tmp_path):
    command = [sys.executable, SCRIPT, "--output", tmp_path / "out", "--smallest"]
    for trained in (True, False):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        claims = (tmp_path / "out" / "claims.md").read_text()
        assert claims in done.stdout
        assert re.findall(r"^- \((\w+)\)", claims, re.MULTILINE) == [
            "i", "ii", "iii", "iv", "v"
        ]  # fmt: skip
        assert len(re.findall(r": (holds|fails|undecided) \(", claims)) == 8
        assert ("train_runtime" in done.stdout) == trained, "once"
    for name in ("models", "altered", "amounts", "T = 0.85", "T = 1"):
        assert (tmp_path / "out" / "measured" / name / "figures.svg").exists()
