import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lm_latent_eval.distortion.report import draw_estimates, draw_language_check
from lm_latent_eval.distortion.report.maps import (
    plot_histogram,
    plot_histograms,
)
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from tests.distortion.report.drawn import MODEL, TRUE, axes, written

HISTOGRAM = JointHistogram.of(TRUE, MODEL, num_bins=7)
CURVE = ErrorCurve.of(TRUE, MODEL, bins="count", num_bins=3, resamples=50)


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


def test_every_count_is_shown():
    mesh = plot_histogram(axes(), HISTOGRAM, LogNorm(1, 10))
    shown = np.ma.filled(mesh.get_array(), 0).T.astype(int)
    assert shown.tolist() == [list(row) for row in HISTOGRAM.counts]
    assert shown.sum() == 40
    assert mesh.get_rasterized()


def test_the_line_of_equality_is_the_diagonal():
    ax = axes()
    plot_histogram(ax, HISTOGRAM, LogNorm(1, 10))
    (line,) = ax.lines
    assert line.get_slope() == 1
    ((x, y),) = [line.get_xy1()]
    assert x == y


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


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("curves", [{}, {"a": CURVE, "b": CURVE}])
def test_figures(tmp_path, count, curves):
    panels = [(f"model {i}", HISTOGRAM) for i in range(count)]
    draw_estimates(tmp_path / "2", panels, curves)
    svg = written(tmp_path / "2")
    for text in (
        "true log p (nats)",
        "model log p (nats)",
        "underestimated",
        "model 0",
    ):
        assert text in svg
    assert ("mean estimation error (nats)" in svg) is bool(curves)
    assert len(svg) < 300_000


def test_a_language_is_checked_on_its_own_and_on_random_sequences(tmp_path):
    draw_language_check(tmp_path / "7", HISTOGRAM, CURVE, CURVE, title="Mine")
    svg = written(tmp_path / "7")
    for text in ("sequences of the language", "random sequences", "Mine"):
        assert text in svg


def test_one_bin_of_one_sequence(tmp_path):
    one = torch.tensor([-2.0])
    histogram = JointHistogram.of(one, one, num_bins=1)
    draw_estimates(tmp_path / "1", [("a", histogram)], {})
    written(tmp_path / "1")


def test_no_histogram_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs a joint histogram"):
        draw_estimates(tmp_path / "1", [], {"a": CURVE})
    assert not list(tmp_path.iterdir())
