import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.report import draw_map
from lm_latent_eval.distortion.report.maps import (
    colour_limit,
    colour_ticks,
    plot_infinite,
    plot_map,
)
from lm_latent_eval.distortion.statistics import ErrorCell, ErrorMap
from tests.distortion.report.drawn import axes, written


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
    assert mesh.get_rasterized()


def test_colours_reach_as_far_as_most_sequences():
    cells = [ErrorCell(0, -10.0, 0.0, 97, -2.0), ErrorCell(1, -10.0, 0.0, 1, 3.0)]
    outlier = ErrorCell(2, -10.0, 0.0, 2, 50.0)
    assert colour_limit([*cells, outlier]) == 3.0
    assert colour_limit(cells[:1]) == 2.0
    assert colour_limit([]) == 1.0
    assert colour_limit([ErrorCell(0, -10.0, 0.0, 5, 0.0)]) == 1.0


@pytest.mark.parametrize("limit", [0.003, 0.9, 1.0, 4.0, 17.0, 60.0, 1234.5])
def test_ticks_are_round_and_within_the_colours(limit):
    ticks = colour_ticks(limit)
    assert ticks == [-tick for tick in reversed(ticks)]
    assert 0 in ticks
    assert ticks[-1] > limit / 2.5 * (1 - 1e-12)
    assert ticks[-1] <= limit
    assert 5 <= len(ticks) <= 9


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


def test_figures(tmp_path):
    example = ("(1) rare", "a $5 loaf " * 30)
    draw_map(tmp_path / "5", error_map(*GROUPS), [example, ("(2)", "b")], title="Map")
    svg = written(tmp_path / "5")
    for text in ("perturbations", "true log p (nats)", "(1) rare: a $5 loaf", "Map"):
        assert text in svg
    assert "mean estimation error (nats)" in svg
    assert "impossible" not in svg
    assert sum(svg.count(word) for word in ("$5",)) >= 2, "long examples are wrapped"
    draw_map(tmp_path / "5b", error_map(*GROUPS, *INFINITE))
    svg = written(tmp_path / "5b")
    assert "impossible in the language alone" in svg
    assert "share" in svg


@pytest.mark.parametrize(
    "groups",
    [
        [(0, -15, -15, 11)],
        [(3, -15, -15, 1)],
        [(0, -math.inf, -3, 2)],
        [(7, -3, -math.inf, 2)],
    ],
)
def test_small_maps(tmp_path, groups):
    draw_map(tmp_path / "5", error_map(*groups))
    written(tmp_path / "5")


def test_an_empty_map_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no sequences"):
        draw_map(tmp_path / "5", ErrorMap(1.0))
