import pytest
import torch

from lm_latent_eval.distortion.report import draw_lengths
from lm_latent_eval.distortion.report.curves import plot_lengths
from lm_latent_eval.distortion.statistics import LengthErrors
from tests.distortion.report.drawn import MODEL, TRUE, axes, points, written

TOKENS = torch.arange(40).div(10, rounding_mode="floor") + 1


def errors(**about):
    return LengthErrors.of(TRUE, MODEL, TOKENS, fewest=5, resamples=50, **about)


def test_observed_is_blue_and_expected_black():
    ax, each = axes(), errors()
    plot_lengths(ax, each)
    observed, expected, _ = ax.lines
    assert points(observed) == [(e.num_tokens, e.mean_error) for e in each.lengths]
    assert points(expected) == [(e.num_tokens, e.expected) for e in each.lengths]
    assert len(each.lengths) == 4
    assert expected.get_color() == "black"
    (band,) = ax.collections
    corners = {tuple(v) for v in band.get_paths()[0].vertices.tolist()}
    ends = {(e.num_tokens, v) for e in each.lengths for v in (e.lower, e.upper)}
    assert corners == ends


@pytest.mark.parametrize("panels", [1, 2])
def test_figures(tmp_path, panels):
    drawn = [(f"model {i}", errors()) for i in range(panels)]
    draw_lengths(tmp_path / "12", drawn, title="Lengths")
    svg = written(tmp_path / "12")
    for text in ("tokens of a sequence", "expected (length", "observed", "Lengths"):
        assert text in svg


def test_one_length(tmp_path):
    one = LengthErrors.of(TRUE, MODEL, torch.full((40,), 3), resamples=50)
    draw_lengths(tmp_path / "12", [("a", one)])
    written(tmp_path / "12")


def test_no_panels_are_refused(tmp_path):
    with pytest.raises(ValueError, match="needs the errors of a model"):
        draw_lengths(tmp_path / "12", [])
