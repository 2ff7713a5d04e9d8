"""Curves are the numbers that they are drawn from."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.distortion.report import (
    draw_amount,
    draw_latent,
    draw_lengths,
    draw_productivity,
    draw_temperatures,
    draw_training,
)
from lm_latent_eval.distortion.report.curves import (
    SLICES,
    colour_scale,
    plot_amount,
    plot_corrected,
    plot_curves,
    plot_densities,
    plot_lengths,
    plot_productivity,
    plot_training,
)
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    ErrorTrajectory,
    LengthErrors,
    ProductivityCurve,
)
from tests.distortion.report.drawn import (
    MODEL,
    TRUE,
    axes,
    corners,
    points,
    refused,
    says,
)


def curve(model=MODEL, num_bins=4, **about):
    return ErrorCurve.of(
        TRUE, model, bins="count", num_bins=num_bins, resamples=50, **about
    )


def lengths():
    tokens = torch.arange(40).div(10, rounding_mode="floor") + 1
    return LengthErrors.of(TRUE, MODEL, tokens, fewest=5, resamples=50)


def trajectory(epochs=4, num_bins=5):
    shrinking = torch.arange(epochs, 0, -1, dtype=torch.float64)[:, None]
    return ErrorTrajectory.of(TRUE, TRUE * (1 + shrinking.square() / 10), num_bins)


# By probability


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
        x = [one.mean_true_log_p for one in each.bins]
        assert corners(band) == {
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
    assert corrected.get_linestyle() == "--"


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


def test_equal_log_probabilities_have_a_density():
    ax = axes()
    plot_densities(ax, {1.0: torch.full((12,), -3.0)}, {1.0: "r"})
    heights, edges, _ = ax.patches[0].get_data()
    assert (heights * (edges[1:] - edges[:-1])).sum() == pytest.approx(1)


# By length, and as a text grows


def test_observed_and_expected_errors_of_lengths():
    ax, each = axes(), lengths()
    plot_lengths(ax, each)
    observed, expected, _ = ax.lines
    assert points(observed) == [(e.num_tokens, e.mean_error) for e in each.lengths]
    assert points(expected) == [(e.num_tokens, e.expected) for e in each.lengths]
    assert expected.get_color() == "black"
    (band,) = ax.collections
    ends = {(e.num_tokens, v) for e in each.lengths for v in (e.lower, e.upper)}
    assert corners(band) == ends


def test_productivity_is_the_measurement():
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


# Over training


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


# Files


PERFECT = ErrorTrajectory.of(TRUE, TRUE.expand(3, -1).clone(), 2)
FIGURES = {
    "temperatures": (
        lambda path: draw_temperatures(
            path, {0.7: TRUE, 1.0: TRUE}, {0.7: curve(), 1.0: curve()}
        ),
        ("density (1/nat)", "T = 0.7", "<!-- T = 1 -->"),
    ),
    "estimates": (
        lambda path: draw_latent(path, {"K = 1": curve(), "K = 9": curve()}, None),
        ("corrected to second order", "<!-- K = 1 -->", "<!-- K = 9 -->"),
    ),
    "estimates beside exact sums": (
        lambda path: draw_latent(path, {"K = 1": curve()}, curve()),
        ("corrected to second order", "<!-- exact -->"),
    ),
    "productivity": (
        lambda path: draw_productivity(path, {"letters": ProductivityCurve.of("a")}),
        ("events sampled", "probability that the next is new", "letters"),
    ),
    "training": (
        lambda path: draw_training(path, [("test", trajectory(40))], 1, title="One"),
        ("epoch", "mean estimation error (nats)", "least validation loss", "One"),
    ),
    "amount": (
        lambda path: draw_amount(path, [("a", trajectory(), 500), ("b", PERFECT, 9)]),
        ("sequences seen", "relative change"),
    ),
    "amount, one epoch": (
        lambda path: draw_amount(path, [("a", trajectory(1, 1), 500)]),
        ("sequences seen",),
    ),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_say_what_they_show(tmp_path, kind):
    says(tmp_path, *FIGURES[kind])


REFUSED = {
    "needs an error curve": lambda path: draw_latent(path, {}, curve()),
    r"temperature 0\.7": lambda path: draw_temperatures(
        path, {0.7: torch.tensor([-1.0, -torch.inf])}, {0.7: curve()}
    ),
    "needs an error trajectory": lambda path: draw_training(path, [], None),
    "needs the errors of a model": lambda path: draw_lengths(path, []),
}


@pytest.mark.parametrize("message", REFUSED)
def test_nothing_is_drawn_of_nothing(tmp_path, message):
    refused(tmp_path, message, REFUSED[message])
