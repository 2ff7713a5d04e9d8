import pytest
import torch

from lm_latent_eval.distortion.report import (
    draw_latent,
    draw_random,
    draw_temperatures,
)
from lm_latent_eval.distortion.report.curves import (
    SLICES,
    plot_corrected,
    plot_curves,
    plot_densities,
)
from lm_latent_eval.distortion.statistics import ErrorCurve
from tests.distortion.report.drawn import MODEL, TRUE, axes, points, written


def curve(model=MODEL, num_bins=4, **about):
    return ErrorCurve.of(
        TRUE, model, bins="count", num_bins=num_bins, resamples=50, **about
    )


def test_curves_are_the_bins():
    ax = axes()
    curves = {"a": curve(), "b": curve(2 * TRUE, 2)}
    plot_curves(ax, curves, {"a": "r", "b": "g"})
    a, b, zero = ax.lines
    for line, each in ((a, curves["a"]), (b, curves["b"])):
        expected = [(one.mean_true_log_p, one.mean_error) for one in each.bins]
        assert points(line) == expected
    assert [line.get_color() for line in (a, b)] == ["r", "g"]
    assert list(zero.get_ydata()) == [0, 0]
    for band, each in zip(ax.collections, curves.values(), strict=True):
        corners = {tuple(v) for v in band.get_paths()[0].vertices.tolist()}
        x = [one.mean_true_log_p for one in each.bins]
        assert corners == {
            *zip(x, [one.lower for one in each.bins], strict=True),
            *zip(x, [one.upper for one in each.bins], strict=True),
        }


def test_corrected_curves_lose_the_estimators_bias():
    ax = axes()
    stderr = -0.1 * TRUE  # so that the bias is -stderr^2 / 2, larger for the rarer
    each = curve(stderr=stderr)
    plot_corrected(ax, each, None)
    line, _, corrected = ax.lines
    parts = [part.square().mean().item() / 2 for part in stderr.flip(0).split(10)]
    raised = [y for _, y in points(corrected)]
    expected = [y + b for (_, y), b in zip(points(line), parts, strict=True)]
    assert raised == pytest.approx(expected, rel=1e-12)
    assert corrected.get_color() != line.get_color()
    assert corrected.get_linestyle() == "--"


def test_every_estimate_has_a_panel_of_its_own(tmp_path):
    """Beside the exact curve alone, which no other estimate's band lies on."""
    each = curve(num_bins=4)
    draw_latent(tmp_path / "a", {f"K = {k}": each for k in range(5)}, each)
    svg = written(tmp_path / "a")
    assert all(svg.count(f"<!-- K = {k} -->") == 1 for k in range(5))
    ax = axes()
    plot_corrected(ax, each, each)
    assert [len(ax.collections), len(ax.lines)] == [2, 4]
    with pytest.raises(ValueError, match="needs an error curve"):
        draw_latent(tmp_path / "b", {}, each)


def test_densities_are_shares_of_the_sequences_per_nat():
    ax = axes()
    plot_densities(ax, {1.0: 2 * TRUE, 0.7: TRUE}, {0.7: "r", 1.0: "g"})
    outlines = [patch for patch in ax.patches if not patch.get_fill()]
    for patch, log_p in zip(outlines, (TRUE, 2 * TRUE), strict=True):
        heights, edges, _ = patch.get_data()
        assert len(heights) == SLICES
        assert (edges[0], edges[-1]) == (-80, -1)
        place = torch.bucketize(log_p, torch.tensor(edges[1:-1]), right=True)
        counts = place.bincount(minlength=SLICES) / 40 / (79 / SLICES)
        assert heights.tolist() == pytest.approx(counts.tolist(), rel=1e-6)


def test_an_impossible_sequence_of_the_language_is_refused(tmp_path):
    impossible = torch.tensor([-1.0, -torch.inf])
    with pytest.raises(ValueError, match=r"temperature 0\.7"):
        draw_temperatures(tmp_path / "a", {0.7: impossible}, {0.7: curve()})


@pytest.mark.parametrize("num_bins", [1, 4])
def test_figures(tmp_path, num_bins):
    each = curve(num_bins=num_bins)
    draw_random(tmp_path / "11", {"LSTM": each}, title="Random")
    svg = written(tmp_path / "11")
    for text in ("true log p (nats)", "mean estimation error (nats)", "LSTM", "Random"):
        assert text in svg
    draw_temperatures(tmp_path / "6", {0.7: TRUE, 1.0: TRUE}, {0.7: each, 1.0: each})
    svg = written(tmp_path / "6")
    for text in ("density (1/nat)", "T = 0.7", "<!-- T = 1 -->"):
        assert text in svg
    for exact in (None, each):
        draw_latent(tmp_path / "latent", {"1 sample": each, "9 samples": each}, exact)
        svg = written(tmp_path / "latent")
        assert "corrected to second order" in svg
        assert ("<!-- exact -->" in svg) is (exact is not None)


def test_equal_log_probabilities_have_a_density(tmp_path):
    same = torch.full((12,), -3.0)
    ax = axes()
    plot_densities(ax, {1.0: same}, {1.0: "r"})
    heights, edges, _ = ax.patches[0].get_data()
    assert (heights * (edges[1:] - edges[:-1])).sum() == pytest.approx(1)
