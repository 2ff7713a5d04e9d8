import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from lm_latent_eval.distortion.report.style import (
    BAND,
    MODELS,
    NO_ERROR,
    colours,
    legend,
    plot_band,
    shades,
    width_of,
    zero_line,
)
from lm_latent_eval.report.figures import ENDINGS, drawable, page
from tests.distortion.report.drawn import axes, points, written


def test_a_page_is_written_twice_the_same(tmp_path):
    for name in ("a", "b"):
        with page(
            tmp_path / "new" / name, width=2, height=2, title="one $x$"
        ) as figure:
            figure.subplots().plot([0, 1], [0, 1])
    assert written(tmp_path / "new" / "a") == written(tmp_path / "new" / "b")
    assert "<!-- one $x$ -->" in written(tmp_path / "new" / "a"), (
        "dollars are not mathematics"
    )
    for kind in ENDINGS:
        a, b = (tmp_path / "new" / f"{name}.{kind}" for name in "ab")
        assert a.read_bytes() == b.read_bytes()
    assert "<text" not in written(tmp_path / "new" / "a"), "glyphs, not fonts' names"
    content = (tmp_path / "new" / "a.pdf").read_bytes()
    assert b"/FontFile2" in content, "fonts are embedded"
    assert b"/Type3" not in content, "and whole"


def test_what_the_font_lacks_is_spelled_out(tmp_path):
    """A warning, which is an error here, would say that there are boxes."""
    assert drawable("naïve τ 漢") == "naïve τ \\u6f22"
    with page(tmp_path / "a", width=2, height=2, title="漢字") as figure:
        figure.subplots().plot([0], [0], label="中")
        legend(figure)
    svg = written(tmp_path / "a")
    assert "<!-- \\u6f22\\u5b57 -->" in svg and "<!-- \\u4e2d -->" in svg


def test_a_point_in_the_name_is_not_an_ending(tmp_path):
    with page(tmp_path / "temperature_0.85", width=1, height=1):
        pass
    written(tmp_path / "temperature_0.85")


def test_nothing_is_written_where_the_drawing_fails(tmp_path):
    with pytest.raises(KeyError), page(tmp_path / "a", width=1, height=1):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with (
        pytest.raises(ModuleNotFoundError, match=r"lm-latent-eval\[plots\]"),
        page(tmp_path / "a", width=1, height=1),
    ):
        pass


def test_a_kind_of_model_has_its_colour_in_any_company():
    alone = colours(["GPT-2 medium"])
    together = colours(["mine", "LSTM", "GPT2-medium, more data", "GPT-2 medium"])
    assert together["GPT2-medium, more data"] == alone["GPT-2 medium"]
    assert together["LSTM"] == colours(["lstm"])["lstm"] == MODELS["lstm"]
    assert list(together) == ["mine", "LSTM", "GPT2-medium, more data", "GPT-2 medium"]
    assert len(set(together.values())) == 4


def test_there_are_only_so_many_colours():
    every = len(colours(map(str, range(8))))
    assert every == 8
    with pytest.raises(ValueError, match="9 models share one figure"):
        colours(map(str, range(9)))


def test_shades_lighten():
    def luminance(colour):
        return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5))

    light = [luminance(each) for each in shades(5)]
    assert light == sorted(light)
    assert len(set(shades(5))) == 5
    assert len(shades(1)) == 1
    assert shades(0) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_band_is_drawn_as_given(count):
    ax = axes()
    x, y = [-3.0, -2.0, -1.0][:count], [-5.0, -4.0, 1.0][:count]
    lower, upper = [v - 2 for v in y], [v + 1 for v in y]
    plot_band(ax, x, y, lower, upper, color="k", label="mine")
    (line,) = ax.lines
    assert points(line) == list(zip(x, y, strict=True))
    assert line.get_marker() == ("o" if count == 1 else "None")
    (band,) = ax.collections
    corners = {tuple(v) for v in band.get_paths()[0].vertices.tolist()}
    assert corners == {*zip(x, lower, strict=True), *zip(x, upper, strict=True)}


def test_a_legend_names_each_label_once_in_order():
    figure = Figure(figsize=(9, 2))
    for ax in figure.subplots(1, 2):
        ax.plot([0], [0], label="b")
        zero_line(ax)
        plot_band(ax, [0, 1], [0, 0], [-1, -1], [1, 1], color="r", label="a")
    legend(figure)
    (found,) = figure.legends
    assert [t.get_text() for t in found.get_texts()] == ["b", NO_ERROR, "a", BAND]


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_a_legend_stays_on_the_page(tmp_path, count):
    with page(tmp_path / "a", width=3.3, height=4) as figure:
        ax = figure.subplots()
        for i in range(count):
            ax.plot([0, 1], [0, i], label=f"model number {i}")
        legend(figure)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        columns = box.width / figure.bbox.width
        assert count == 1 or columns > 0.5, "no more rows than there must be"


def test_the_page_is_as_wide_as_two_columns_or_as_the_panels_need():
    widths = [width_of(panels, 3) for panels in (1, 2, 3, 6)]
    assert np.allclose(widths, [3.3, 6.8, 6.8, 13.6])
