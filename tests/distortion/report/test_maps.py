"""Maps and histograms are the numbers that they are drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lm_latent_eval.distortion.report import (
    draw_estimates,
    draw_map,
)
from lm_latent_eval.distortion.report.maps import (
    plot_histogram,
    plot_histograms,
    plot_infinite,
    plot_map,
)
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    ErrorMap,
    JointHistogram,
)
from tests.distortion.report.drawn import MODEL, TRUE, axes, refused, says


def error_map(*groups):
    """Return a map of width 10 of (edits, log p_L, log p_M, how many)."""
    found = ErrorMap(10.0)
    for edits, true, model, count in groups:
        column = torch.full((count,), float(true), dtype=torch.float64)
        found.add(
            column,
            torch.full_like(column, float(model)),
            torch.full((count,), edits),
        )
    return found


GROUPS = (
    (0, -15, -18, 30),
    (0, -35, -40, 12),
    (2, -15, -11, 11),
    (2, -25, -20, 10),  # too few
)
INFINITE = (
    (0, -15, -18, 3),
    (2, -15, -18, 2),
    (2, -math.inf, -18, 4),
    (2, -math.inf, -math.inf, 1),
    (2, -12, -math.inf, 3),
)
HISTOGRAM = JointHistogram.of(TRUE, MODEL, num_bins=7)
CURVE = ErrorCurve.of(TRUE, MODEL, bins="count", num_bins=3, resamples=50)


# Maps


def test_cells_are_where_their_numbers_say():
    ax = axes()
    mesh = plot_map(ax, error_map(*GROUPS))
    shown = np.ma.filled(mesh.get_array(), np.nan)
    nan = math.nan
    expected = [[-5, nan, -3], [nan, nan, nan], [nan, nan, 4]]
    assert np.array_equal(shown, expected, equal_nan=True)
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [-40, -30, -20, -10]
    assert corners[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert "10 sequences in smaller" in ax.get_title(loc="right")


def test_blue_overestimates_and_brown_underestimates_alike():
    mesh = plot_map(axes(), error_map(*GROUPS))
    low, high = mesh.get_clim()
    assert low == -high == -5
    brown, white, blue = (mesh.to_rgba(error) for error in (-5.0, 0.0, 5.0))
    assert brown[0] > brown[2]
    assert blue[2] > blue[0]
    assert white == (1, 1, 1, 1)


def test_impossible_sequences_are_shares_of_their_row():
    ax = axes()
    plot_infinite(ax, error_map(*INFINITE).rows())
    found = {
        bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars]
        for bars in ax.containers
    }
    assert found == {
        "impossible in the language alone": [(0, 0), (0, 0.4)],
        "impossible in both": [(0, 0), (0.4, 0.1)],
        "impossible in the model alone": [(0, 0), (0.5, 0.3)],
    }


# Histograms


def test_truth_goes_right_and_the_model_up():
    ax = axes()
    lopsided = JointHistogram.of(
        torch.tensor([-4.0, -2.0, -2.0]), torch.tensor([-8.0, -2.0, -2.1]), num_bins=3
    )
    mesh = plot_histogram(ax, lopsided, LogNorm(1, 10))
    shown = np.ma.filled(mesh.get_array(), 0)
    assert shown.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 2]], "rows are the model's"
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [-8, -6, -4, -2]
    assert corners[:, 0, 1].tolist() == [-8, -6, -4, -2]
    (equality,) = ax.lines
    ((x, y),) = [equality.get_xy1()]
    assert (equality.get_slope(), x) == (1, y)


def test_histograms_share_their_range_and_their_counts():
    figure = Figure()
    other = JointHistogram.of(TRUE, 3 * TRUE, num_bins=5)
    axes = list(figure.subplots(1, 2))
    plot_histograms(figure, axes, [("a", HISTOGRAM), ("b", other)])
    assert {ax.get_xlim() for ax in axes} == {(-120.0, -1.0)}
    assert {ax.get_ylim() for ax in axes} == {(-120.0, -1.0)}
    limits = {ax.collections[0].get_clim() for ax in axes}
    most = max(max(map(max, each.counts)) for each in (HISTOGRAM, other))
    assert limits == {(1, max(10, most))}


# Files


ONE = JointHistogram.of(torch.tensor([-2.0]), torch.tensor([-2.0]), num_bins=1)
EXAMPLES = [("(1) rare", "a $5 loaf " * 30), ("(2)", "b")]
INFINITY = "impossible in the language alone"
FIGURES = {
    "a map with impossible sequences": (
        lambda path: draw_map(path, error_map(*GROUPS, *INFINITE), EXAMPLES),
        (INFINITY, "share", "mean estimation error (nats)", "(1) rare: a $5 loaf"),
    ),
    "a map of one cell": (
        lambda path: draw_map(path, error_map((0, -15, -15, 11))),
        ("perturbations",),
    ),
    "a map without a cell": (
        lambda path: draw_map(path, error_map((0, -math.inf, -3, 2))),
        (INFINITY,),
    ),
    "histograms": (
        lambda path: draw_estimates(path, [("a", HISTOGRAM), ("b", ONE)], {}),
        ("true log p (nats)", "model log p (nats)", "underestimated"),
    ),
    "histograms and curves": (
        lambda path: draw_estimates(
            path, [(f"model {i}", HISTOGRAM) for i in range(6)], {"a": CURVE}
        ),
        ("model 5", "mean estimation error (nats)"),
    ),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_say_what_they_show(tmp_path, kind):
    draw, texts = FIGURES[kind]
    svg = says(tmp_path, draw, texts)
    assert (INFINITY in svg) is (INFINITY in texts)
    if "$5" in svg:
        assert svg.count("$5") >= 2, "long examples are wrapped"


REFUSED = {
    "no sequences": lambda path: draw_map(path, ErrorMap(1.0)),
    "needs a joint histogram": lambda path: draw_estimates(path, [], {"a": CURVE}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_nothing_is_drawn_of_nothing(tmp_path, message):
    refused(tmp_path, message, REFUSED[message])
