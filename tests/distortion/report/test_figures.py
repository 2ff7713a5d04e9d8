"""Figures are the numbers that they are drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm_latent_eval.distortion.report import curves, maps
from lm_latent_eval.distortion.report.style import colours, legend
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    ErrorMap,
    JointHistogram,
    LengthErrors,
)
from lm_latent_eval.report.figures import drawable, page
from tests.distortion.report.saved import written

TRUE = -torch.arange(1, 41, dtype=torch.float64)
MODEL = 1.25 * TRUE - torch.arange(40).remainder(3)


def axes() -> Axes:
    return Figure().subplots()


def points(line) -> list[tuple[float, float]]:
    return [tuple(each) for each in line.get_xydata().tolist()]


def corners(band) -> set[tuple[float, float]]:
    return {tuple(each) for each in band.get_paths()[0].vertices.tolist()}


def curve(model=MODEL, num_bins=4, **about):
    return ErrorCurve.of(
        TRUE, model, bins="count", num_bins=num_bins, resamples=50, **about
    )


# Lines


def through(each):
    return [(one.mean_true_log_p, one.mean_error) for one in each.bins]


def around(each):
    return {(b.mean_true_log_p, end) for b in each.bins for end in (b.lower, b.upper)}


CURVES = {"a": curve(), "b": curve(2 * TRUE, 2)}
LENGTHS = LengthErrors.of(TRUE, MODEL, torch.arange(40) // 13 + 1)
LINES = [
    (
        curves.plot_curves,
        (CURVES, {"a": "r", "b": "g"}),
        [through(each) for each in CURVES.values()],
        [around(each) for each in CURVES.values()],
    ),
    (
        curves.plot_lengths,
        (LENGTHS,),
        [
            [(each.num_tokens, each.mean_error) for each in LENGTHS.lengths],
            [(each.num_tokens, each.expected) for each in LENGTHS.lengths],
        ],
        [{(e.num_tokens, v) for e in LENGTHS.lengths for v in (e.lower, e.upper)}],
    ),
]


@pytest.mark.parametrize(("plot", "given", "lines", "bands"), LINES)
def test_lines_and_bands_are_the_numbers(plot, given, lines, bands):
    ax = axes()
    plot(ax, *given)
    assert [points(line) for line in ax.lines[: len(lines)]] == lines
    assert [corners(band) for band in ax.collections] == bands


def test_corrected_curves_lose_the_estimators_bias():
    ax = axes()
    stderr = -0.1 * TRUE  # so that the bias is -stderr^2 / 2, larger for the rarer
    curves.plot_corrected(ax, curve(stderr=stderr), curve(TRUE))
    exact, line, _, corrected = ax.lines
    assert {y for _, y in points(exact)} == {0}
    parts = [part.square().mean().item() / 2 for part in stderr.flip(0).split(10)]
    raised = [y for _, y in points(corrected)]
    expected = [y + b for (_, y), b in zip(points(line), parts, strict=True)]
    assert raised == pytest.approx(expected, rel=1e-12)
    assert corrected.get_linestyle() == "--"


# Maps


def error_map(*groups):
    """Return a map of width 10 of (edits, log p_L, log p_M, how many)."""
    found = ErrorMap(10.0)
    for edits, true, model, count in groups:
        pair = torch.tensor([[true], [model]], dtype=torch.float64).expand(2, count)
        found.add(*pair, torch.full((count,), edits))
    return found


GROUPS = (
    (0, -15, -18, 30),
    (0, -35, -40, 12),
    (2, -15, -11, 11),
    (2, -25, -20, 10),  # too few
)
HISTOGRAM = JointHistogram.of(TRUE, MODEL, num_bins=7)


def test_cells_are_where_their_numbers_say():
    ax = axes()
    mesh = maps.plot_map(ax, error_map(*GROUPS))
    shown = np.ma.filled(mesh.get_array(), np.nan)
    nan = math.nan
    expected = [[-5, nan, -3], [nan, nan, nan], [nan, nan, 4]]
    assert np.array_equal(shown, expected, equal_nan=True)
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [-40, -30, -20, -10]
    assert corners[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert "10 sequences in smaller" in ax.get_title(loc="right")
    # Brown underestimates, blue overestimates, and no error is white.
    assert mesh.get_clim() == (-5, 5)
    brown, white, blue = (mesh.to_rgba(error) for error in (-5.0, 0.0, 5.0))
    assert brown[0] > brown[2]
    assert blue[2] > blue[0]
    assert white == (1, 1, 1, 1)


# Histograms


def test_truth_goes_right_and_the_model_up():
    """On one range and one scale of counts."""
    figure = Figure()
    lopsided = JointHistogram.of(
        torch.tensor([-4.0, -2.0, -2.0]), torch.tensor([-8.0, -2.0, -2.1]), num_bins=3
    )
    axes = list(figure.subplots(1, 2))
    maps.plot_histograms(figure, axes, [("a", lopsided), ("b", HISTOGRAM)])
    mesh, other = (ax.collections[0] for ax in axes)
    shown = np.ma.filled(mesh.get_array(), 0)
    assert shown.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 2]], "rows are the model's"
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [-8, -6, -4, -2]
    assert corners[:, 0, 1].tolist() == [-8, -6, -4, -2]
    (equality,) = axes[0].lines
    x, y = equality.get_xy1()
    assert (equality.get_slope(), x) == (1, y)
    ends = (HISTOGRAM.edges[0], -1.0)
    assert {each for ax in axes for each in (ax.get_xlim(), ax.get_ylim())} == {ends}
    most = max(map(max, HISTOGRAM.counts))
    assert mesh.get_clim() == other.get_clim() == (1, max(10, most))


# Files


ONE = JointHistogram.of(torch.tensor([-2.0]), torch.tensor([-2.0]), num_bins=1)
EXAMPLES = [("(1) rare", "a $5 loaf " * 30), ("(2)", "b")]
ERROR = "mean estimation error (nats)"
TWO = [("one", ONE), ("many", HISTOGRAM)]
AXES = ("true log p (nats)", "model log p (nats)", "underestimated")
FIGURES = [
    (
        maps.draw_map,
        (error_map(*GROUPS), EXAMPLES),
        (ERROR, "(1) rare: a $5 loaf"),
    ),
    # A map of one cell, and one without.
    (maps.draw_map, (error_map((0, -15, -15, 11)),), ("perturbations",)),
    (maps.draw_map, (error_map((0, -math.inf, -3, 2)),), ("perturbations",)),
    (maps.draw_estimates, (TWO, {"a": curve()}), (*AXES, "one", ERROR)),
]


@pytest.mark.parametrize(("draw", "given", "texts"), FIGURES)
def test_figures_say_what_they_show(tmp_path, svg_alone, draw, given, texts):
    """In some hundred kilobytes."""
    draw(tmp_path / "figure", *given)
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert [text for text in texts if text not in svg] == []
    assert len(svg) < 300_000
    if "$5" in svg:
        assert svg.count("$5") >= 2, "long examples are wrapped"


# Names, colours, and sequences as text


def test_what_the_font_lacks_is_spelled_out(tmp_path):
    """A warning, which is an error here, would say that there are boxes."""
    assert drawable("naïve τ 漢") == "naïve τ \\u6f22"
    with page(tmp_path / "a", width=2, height=2) as figure:
        figure.suptitle("漢字")
        figure.subplots().plot([0], [0], label="中")
        legend(figure)
    svg = written(tmp_path / "a")
    assert "<!-- \\u6f22\\u5b57 -->" in svg and "<!-- \\u4e2d -->" in svg


def test_an_svg_does_not_depend_on_the_files_beside_it(tmp_path, request):
    for name in "ab":
        with page(tmp_path / name, width=6, height=2) as figure:
            for axis in figure.subplots(1, 3):
                axis.plot([0, 1], [0, 0.37], label="a model")
            legend(figure)
        request.getfixturevalue("svg_alone")
    [a, b] = ((tmp_path / f"{name}.svg").read_text() for name in "ab")
    assert not (tmp_path / "b.png").exists() and a == b


def test_models_of_a_figure_have_colours_of_their_own():
    names = ["mine", "LSTM", *map(str, range(5))]
    assert len({*colours(names).values()}) == 7
    with pytest.raises(ValueError, match="8 models share one figure, which has 7"):
        colours(map(str, range(8)))
