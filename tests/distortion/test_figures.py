"""The page of figures shows the numbers that it is drawn from."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm_latent_eval.distortion import figures, measure
from lm_latent_eval.distortion.measure import (
    Errors,
    Measured,
    error_map,
    errors_by_length,
)
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.estimators import Bound
from lm_latent_eval.report.figures import drawable, labelled, legend, page

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


def around(x, bins):
    return {
        (a, end) for a, b in zip(x, bins, strict=True) for end in (b.lower, b.upper)
    }


def by_length():
    lengths = torch.arange(40) // 13 + 1
    columns = {"true_log_p": TRUE, "model_log_p": MODEL, "num_tokens": lengths}
    return errors_by_length(Errors.of(pd.DataFrame(columns)))


# -- lines ---------------------------------------------------------------------------


def test_curves_are_the_numbers():
    ax, one, other = axes(), curve(), curve(2 * TRUE, 2)
    figures.plot_curves(ax, one, other)
    for line, band, each in zip(ax.lines, ax.collections, (one, other), strict=False):
        x = [found.mean_true_log_p for found in each.bins.itertuples()]
        assert points(line) == [
            *zip(x, [b.mean_error for b in each.bins.itertuples()], strict=True)
        ]
        assert corners(band) == around(x, [*each.bins.itertuples()])
    assert len(ax.lines) == 3, "the last is where a model is right"
    figures.plot_curves(nothing := axes(), None, None)
    assert len(nothing.lines) == 1


def test_lengths_are_the_numbers():
    ax, found = axes(), by_length()
    figures.plot_lengths(ax, found)
    observed, expected, _ = map(points, ax.lines)
    assert observed == [*zip(found.num_tokens, found.mean_error, strict=True)]
    assert expected == [*zip(found.num_tokens, found.expected, strict=True)]
    assert corners(ax.collections[0]) == around(found.num_tokens, found.itertuples())


def test_corrected_curves_lose_the_estimators_bias():
    ax = axes()
    stderr = -0.1 * TRUE  # so that the bias is -stderr^2 / 2, larger for the rarer
    figures.plot_curves(ax, curve(stderr=stderr), None)
    line, corrected, _ = ax.lines
    parts = [part.square().mean().item() / 2 for part in stderr.flip(0).split(10)]
    raised = [y for _, y in points(corrected)]
    expected = [y + b for (_, y), b in zip(points(line), parts, strict=True)]
    assert raised == pytest.approx(expected, rel=1e-12)
    assert corrected.get_linestyle() == "--"


# -- maps ----------------------------------------------------------------------------


def cells(*groups):
    """Return a map of (edits, log p_L, log p_M, how many), in ranges of 10 nats."""
    rows = [group[:3] for group in groups for _ in range(group[3])]
    return error_map(pd.DataFrame(rows, columns=["edits", "true_log_p", "model_log_p"]))


GROUPS = (
    (0, -15, -18, 30),
    (0, -35, -40, 12),
    (2, -15, -11, 11),
    (2, -25, -20, 10),  # too few
)


def test_cells_are_where_their_numbers_say(monkeypatch):
    monkeypatch.setattr(measure, "MAP_COLUMNS", 2)
    ax = axes()
    mesh = figures.plot_map(ax, cells(*GROUPS))
    shown = np.ma.filled(mesh.get_array(), np.nan)
    nan = math.nan
    expected = [[-5, nan, -3], [nan, nan, nan], [nan, nan, 4]]
    assert np.array_equal(shown, expected, equal_nan=True)
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [-40, -30, -20, -10]
    assert corners[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]
    # Brown underestimates, blue overestimates, and no error is white.
    assert mesh.get_clim() == (-5, 5)
    brown, white, blue = (mesh.to_rgba(error) for error in (-5.0, 0.0, 5.0))
    assert brown[0] > brown[2]
    assert blue[2] > blue[0]
    assert white == (1, 1, 1, 1)


@pytest.mark.parametrize("group", [(0, -15, -15, 11), (0, -math.inf, -3, 2)])
def test_a_map_may_have_one_cell_or_none(group):
    assert figures.plot_map(axes(), cells(group)).get_clim() == (-1, 1)


# -- histograms ----------------------------------------------------------------------

HISTOGRAM = JointHistogram.of(TRUE, MODEL, num_bins=7)


def test_truth_goes_right_and_the_model_up():
    """On one range and one scale of counts."""
    figure = Figure()
    lopsided = JointHistogram.of(
        torch.tensor([-4.0, -2.0, -2.0]), torch.tensor([-8.0, -2.0, -2.1]), num_bins=3
    )
    axes = list(figure.subplots(1, 3))
    figures.plot_histograms(figure, axes, [lopsided, HISTOGRAM, None])
    mesh, other = (ax.collections[0] for ax in axes[:2])
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


# -- pages ---------------------------------------------------------------------------


def measured(map_of=None) -> Measured:
    of = (curve(), curve(), curve(TRUE + 1), HISTOGRAM, by_length(), map_of)
    return Measured({}, Bound.EXACT, *of, ())


NOTHING = Measured({}, Bound.EXACT, *[None] * 4, by_length()[:0], None, ())
PAGES = {
    "one": ({"one": measured()}, {"<!-- one -->"}),
    "a map": (
        {"a $5 loaf": measured(cells(*GROUPS)), "b": measured()},
        {"$5", "perturbations", "random sequences", "grey: at most 10 sequences"},
    ),
    "few": ({"few": NOTHING}, {"tokens of a sequence"}),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_what_they_show(tmp_path, svg_alone, name):
    """In some hundred kilobytes."""
    found, texts = PAGES[name]
    figures.draw_page(tmp_path / "page", found)
    svg = (tmp_path / "page.svg").read_text(encoding="utf-8")
    assert [text for text in texts if text not in svg] == []
    assert len(svg) < 300_000


def test_what_the_font_lacks_is_spelled_out(tmp_path):
    """A warning, which is an error here, would say that there are boxes."""
    assert drawable("naïve τ 漢") == "naïve τ \\u6f22"
    with page(tmp_path / "a", width=2, height=2) as figure:
        figure.suptitle("漢字")
        figure.subplots().plot([0], [0], label="中")
        legend(figure, labelled(figure))
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert pdf[:4] == b"%PDF" and b"CreationDate" not in pdf
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- \\u6f22\\u5b57 -->" in svg and "<!-- \\u4e2d -->" in svg


def test_an_svg_does_not_depend_on_the_files_beside_it(tmp_path, request):
    for name in "ab":
        with page(tmp_path / name, width=6, height=2) as figure:
            for axis in figure.subplots(1, 3):
                axis.plot([0, 1], [0, 0.37], label="a model")
            legend(figure, labelled(figure))
        request.getfixturevalue("svg_alone")
    [a, b] = ((tmp_path / f"{name}.svg").read_text() for name in "ab")
    assert not (tmp_path / "b.png").exists() and a == b
