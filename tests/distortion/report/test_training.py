import pytest
import torch
from matplotlib.figure import Figure

from lm_latent_eval.distortion.report import draw_amount, draw_training
from lm_latent_eval.distortion.report.curves import (
    INSET,
    colour_scale,
    plot_amount,
    plot_training,
)
from lm_latent_eval.distortion.statistics import ErrorTrajectory
from tests.distortion.report.drawn import TRUE, axes, points, written


def trajectory(epochs=4, num_bins=5):
    shrinking = torch.arange(epochs, 0, -1, dtype=torch.float64)[:, None]
    return ErrorTrajectory.of(TRUE, TRUE * (1 + shrinking.square() / 10), num_bins)


def bins_of(ax, num_bins):
    """Return the lines of bins, from the least probable one on."""
    return ax.lines[:num_bins][::-1]


def test_training_has_a_line_a_bin_through_the_epochs():
    ax, each = axes(), trajectory()
    plot_training(ax, each, 2, colour_scale([each]))
    for b, line in enumerate(bins_of(ax, 5)):
        expected = [(i + 1, row[b]) for i, row in enumerate(each.mean_error)]
        assert points(line) == expected
    assert len(ax.lines) == 6, "and one at 0"
    (band,) = ax.patches
    assert (band.get_x(), band.get_width()) == (1.5, 1)


def test_less_probable_is_darker_on_one_scale_for_all_panels():
    ax, each = axes(), trajectory()
    far = ErrorTrajectory.of(TRUE * 9, TRUE * 10 * torch.ones(2, 1), 5)
    plot_training(ax, each, None, colour_scale([each, far]))
    light = [sum(line.get_color()[:3]) for line in bins_of(ax, 5)]
    assert light == sorted(light)
    alone = axes()
    plot_training(alone, each, None, colour_scale([each]))
    assert sum(bins_of(alone, 5)[0].get_color()[:3]) < light[0]
    assert not ax.patches


def test_amounts_are_sequences_and_the_inset_their_change():
    ax, each = axes(), trajectory()
    plot_amount(ax, each, 500, colour_scale([each]))
    (inset,) = ax.child_axes
    for b, (line, change) in enumerate(
        zip(bins_of(ax, 5), bins_of(inset, 5), strict=True)
    ):
        expected = [(500 * (i + 1), row[b]) for i, row in enumerate(each.mean_error)]
        assert points(line) == expected
        expected = [
            (500 * (i + 2), row[b]) for i, row in enumerate(each.relative_change)
        ]
        assert points(change) == expected


@pytest.mark.parametrize("worsening", [False, True])
def test_the_inset_covers_no_line(worsening):
    figure = Figure(figsize=(3, 3))
    ax = figure.subplots()
    each = trajectory(12)
    if worsening:
        rows = each.mean_error[::-1]
        each = ErrorTrajectory(each.mean_true_log_p, each.counts, rows, each.overall)
    plot_amount(ax, each, 500, colour_scale([each]))
    figure.draw_without_rendering()
    box = ax.child_axes[0].get_tightbbox()
    for line in ax.lines[:-1]:
        path = line.get_path().transformed(ax.transData)
        assert not path.intersects_bbox(box, filled=False)
    assert INSET[2] > 0


def test_outliers_do_not_scale_the_inset():
    """A bin whose error was near 0 changes by a multiple; others are still seen."""
    steady = [[-10.0 - bin - e for bin in range(60)] for e in range(6)]
    steady[2][0] = -1e-6
    each = trajectory(6, 5)
    each = ErrorTrajectory((-1.0,) * 60, (1,) * 60, steady, each.overall)
    assert min(map(min, each.relative_change)) < -1e6, "premise"
    ax = axes()
    plot_amount(ax, each, 500, colour_scale([trajectory()]))
    low, high = ax.child_axes[0].get_ylim()
    assert -0.2 < low < -0.08 and 0 < high < 0.2


def test_one_epoch_has_no_change():
    ax, each = axes(), trajectory(1, 1)
    plot_amount(ax, each, 500, colour_scale([each]))
    assert not ax.child_axes
    assert ax.lines[0].get_marker() == "o"


@pytest.mark.parametrize(("epochs", "num_bins"), [(1, 1), (2, 1), (40, 5)])
def test_figures(tmp_path, epochs, num_bins):
    each = trajectory(epochs, num_bins)
    draw_training(tmp_path / "3", [("training", each), ("test", each)], 1, title="One")
    svg = written(tmp_path / "3")
    for text in (
        "epoch",
        "mean estimation error (nats)",
        "least validation loss",
        "One",
    ):
        assert text in svg
    draw_amount(tmp_path / "4", [("a", each, 500), ("b", each, 100)])
    svg = written(tmp_path / "4")
    assert "sequences seen" in svg
    assert ("relative change" in svg) is (epochs > 1)
    assert len(svg) < 300_000


def test_an_error_of_zero_has_no_relative_change(tmp_path):
    perfect = ErrorTrajectory.of(TRUE, TRUE.expand(3, -1).clone(), 2)
    draw_amount(tmp_path / "4", [("a", perfect, 1)])
    written(tmp_path / "4")


def test_no_panels_are_refused(tmp_path):
    with pytest.raises(ValueError, match="needs an error trajectory"):
        draw_training(tmp_path / "3", [], None)
    with pytest.raises(ValueError, match="needs an error trajectory"):
        draw_amount(tmp_path / "4", [])
    assert not list(tmp_path.iterdir())
