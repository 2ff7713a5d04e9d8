import pytest

from lm_latent_eval.distortion.report import draw_productivity
from lm_latent_eval.distortion.report.curves import plot_productivity
from lm_latent_eval.distortion.statistics import ProductivityCurve
from tests.distortion.report.drawn import axes, points, written


def test_curves_are_the_measurement():
    ax = axes()
    curves = {
        "1-grams": ProductivityCurve.of("abacabad" * 5, [1, 2, 4, 40]),
        "2-grams": ProductivityCurve.of(range(7), [1, 7]),
    }
    plot_productivity(ax, curves)
    one, two = map(points, ax.lines)
    assert one == [(1, 1), (2, 1), (4, 0.5), (40, 0)]
    assert two == [(1, 1), (7, 1)]
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize("events", ["a", "abacabad" * 300])
def test_figures(tmp_path, events):
    draw_productivity(
        tmp_path / "13", {"letters": ProductivityCurve.of(events)}, title="New"
    )
    svg = written(tmp_path / "13")
    for text in (
        "events sampled",
        "probability that the next is new",
        "letters",
        "New",
    ):
        assert text in svg
    assert "mathdefault" not in svg
