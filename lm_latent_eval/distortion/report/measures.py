"""Measurements of ``distort measure``: columns in, numbers and a figure out.

Each measure reads named folders and writes ``STEM.json``, all of its numbers, and
``STEM.png``, ``STEM.svg`` and ``STEM.pdf``, its figure. It returns a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lm_latent_eval.distortion.columns import Columns, ScoresFolder
from lm_latent_eval.distortion.report.curves import (
    plot_curves,
    plot_lengths,
)
from lm_latent_eval.distortion.report.maps import (
    draw_estimates,
    draw_map,
)
from lm_latent_eval.distortion.report.style import (
    COLUMN,
    ERROR,
    LENGTH_PANELS,
    colours,
    legend,
    width_of,
    write_json,
)
from lm_latent_eval.distortion.statistics import (
    ErrorBin,
    ErrorCurve,
    ErrorMap,
    JointHistogram,
    LengthErrors,
)
from lm_latent_eval.distortion.statistics.bins import Bins
from lm_latent_eval.estimators import Bound
from lm_latent_eval.report.figures import page
from lm_latent_eval.report.tabular import Cell, Interval, Table


@dataclass(frozen=True)
class Comparison:
    """Scored sequences whose errors are finite, and how many are not.

    An error is a difference of logarithms: it has no value where the language never
    utters a sequence, or the model rules it out. Such sequences are counted here and
    stand in no mean.
    """

    columns: Columns
    impossible: int
    """Sequences of probability zero under the language."""
    ruled_out: int
    """Possible sequences of probability zero under the model."""
    bound: Bound = Bound.EXACT
    """On which side of the model's own log-probabilities the columns have them."""

    @classmethod
    def of(cls, columns: Columns, bound: Bound = Bound.EXACT) -> Comparison:
        """Divide columns.

        Raises:
            ValueError: If no sequence has a finite error.
        """
        ruled_out = ~columns.impossible & (columns.model_log_p == -torch.inf)
        finite = columns[~columns.impossible & ~ruled_out]
        if not len(finite):
            raise ValueError(
                f"none of {len(columns)} sequences is possible under both the language "
                "and the model, so there is no error to average (what is random or "
                "perturbed suits languages that rule nothing out, as causal LMs)"
            )
        impossible = int(columns.impossible.sum())
        return cls(finite, impossible, int(ruled_out.sum()), bound)

    @classmethod
    def open(cls, directory: Path, edits: int = 0) -> Comparison:
        """Read a folder of scores, of sequences that were perturbed so often.

        Raises:
            ValueError: If it is none, or no sequence has a finite error.
        """
        scores = ScoresFolder.open(directory)
        parts = [each[each.edits == edits] for each in scores.batches()]
        try:
            return cls.of(Columns.cat(parts), Bound(scores.settings["bound"]))
        except ValueError as err:
            raise ValueError(f"{directory}: {err}") from err

    @property
    def bias_is_known(self) -> bool:
        """Whether standard errors say how far estimates are off: a beam has none."""
        return self.bound is not Bound.STRICT_LOWER

    def curve(self, bins: Bins = Bins.WIDTH, num_bins: int = 50) -> ErrorCurve:
        """Return the mean error by true log-probability."""
        found = self.columns
        return ErrorCurve.of(
            found.true_log_p,
            found.model_log_p,
            stderr=found.stderr,
            bins=bins,
            num_bins=num_bins,
        )

    def histogram(self, num_bins: int) -> JointHistogram:
        """Count sequences by both their log-probabilities."""
        found = self.columns
        return JointHistogram.of(found.true_log_p, found.model_log_p, num_bins=num_bins)

    @property
    def left_out(self) -> str:
        """Say what has no error, and which sequences are beginnings; "" if none."""
        cut = int((~self.columns.ended).sum())
        said = {
            "impossible under the language (in no mean)": self.impossible,
            "ruled out by the model (in no mean)": self.ruled_out,
            "cut at the maximum length (compared as beginnings)": cut,
        }
        return ", ".join(f"{count:,} {what}" for what, count in said.items() if count)


Folders = Mapping[str, Path]
"""Name -> folder of scores, or of a trajectory."""
TENTHS = 10
MAP_COLUMNS = 60
"""About so many bins of rarity has a heat map."""


def errors(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure joint histograms and mean error by probability (figures 1, 2 and 9)."""
    found = {name: Comparison.open(path) for name, path in folders.items()}
    curves = {name: each.curve(num_bins=num_bins) for name, each in found.items()}
    histograms = {name: each.histogram(num_bins) for name, each in found.items()}
    draw_estimates(stem, [*histograms.items()], curves)
    write_json(
        stem, {n: {"curve": curves[n], "histogram": histograms[n]} for n in found}
    )
    return error_table(found)


def perturbed(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure rarity by number of perturbations; one folder (figure 5)."""
    if len(folders) != 1:
        raise ValueError(f"a map is of one model; got {', '.join(folders)}")
    (path,) = folders.values()
    return write_map(read_map(path), stem)


def random(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure errors of random sequences by probability (figure 11)."""
    found = {name: Comparison.open(path) for name, path in folders.items()}
    curves = {name: each.curve(num_bins=num_bins) for name, each in found.items()}
    with page(stem, width=COLUMN, height=2.8) as figure:
        plot_curves(figure.subplots(), curves, colours(curves))
        legend(figure)
    write_json(stem, curves)
    return error_table(found)


def lengths(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure errors by length, observed and expected (figure 12)."""
    found = {}
    for name, path in folders.items():
        columns = Comparison.open(path).columns
        found[name] = LengthErrors.of(
            columns.true_log_p,
            columns.model_log_p,
            columns.num_tokens.long(),
            estimated=columns.estimated,
        )
    width = width_of(len(found), LENGTH_PANELS)
    with page(stem, width=width, height=2.7) as figure:
        axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
        for ax, (name, errors) in zip(axes, found.items(), strict=True):
            plot_lengths(ax, errors)
            ax.set_title(name)
        axes[0].set_ylabel(ERROR)
        legend(figure)
    write_json(stem, found)
    rows = [
        {
            "name": name,
            "tokens": each.num_tokens,
            "sequences": each.count,
            "observed error": Interval(each.mean_error, each.lower, each.upper),
            "expected": each.expected,
        }
        for name, errors in found.items()
        for each in errors.lengths
    ]
    return Table.of(rows)


UNBINNED = ("perturbed", "lengths")
"""Measures that need no number of bins."""
MEASURES: dict[str, Callable[[Folders, Path, int], Table]] = {
    each.__name__: each
    for each in (
        errors,
        perturbed,
        random,
        lengths,
    )
}


def _with_interval(found: ErrorBin) -> Interval | float:
    """Return a mean error with its interval, where there are sequences enough."""
    if not found.is_large:
        return found.mean_error
    return Interval(found.mean_error, found.lower, found.upper)


def error_table(found: Mapping[str, Comparison]) -> Table:
    """Return mean errors, of all sequences and of the rarest and commonest tenths."""
    rows: list[dict[str, Cell]] = []
    notes = []
    for name, each in found.items():
        tenths = min(TENTHS, len(each.columns))
        curve = each.curve(Bins.COUNT, tenths)
        whole = each.curve(Bins.COUNT, 1).bins[0]
        rarest, commonest = curve.bins[0], curve.bins[-1]
        bias = curve.estimator_bias if each.bias_is_known else "unknown"
        rows.append(
            {
                "name": name,
                "sequences": len(each.columns),
                "mean error (95 %)": _with_interval(whole),
                "of it the estimator's": bias,
                "underestimated, %": 100 * curve.share_underestimated,
                "rarest tenth": _with_interval(rarest),
                "most probable tenth": _with_interval(commonest),
            }
        )
        if each.left_out:
            notes.append(f"{name}: {each.left_out}.")
    return replace(Table.of(rows), notes=notes)


def write_map(
    error_map: ErrorMap, stem: Path, examples: Sequence[tuple[str, str]] = ()
) -> Table:
    """Write a heat map and its numbers; return mean errors by perturbations."""
    draw_map(stem, error_map, examples)
    write_json(stem, {"rows": error_map.rows(), "cells": error_map.cells()})
    rows = [
        {
            "perturbations": row.edits,
            "sequences": row.count,
            "with an error": row.num_finite,
            "mean error": row.mean_error,
            "±": row.stderr,
            "overestimated": row.share_overestimated,
            "impossible": row.impossible,
            "ruled out": row.ruled_out,
        }
        for row in error_map.rows()
    ]
    return Table.of(rows)


def read_map(path: Path) -> ErrorMap:
    """Read a heat map from a folder of scores, piece by piece."""
    scores = ScoresFolder.open(path)
    finite = [
        (known.min().item(), known.max().item())
        for columns in scores.batches()
        if len(known := columns.true_log_p[~columns.impossible])
    ]
    lowest = min((low for low, _ in finite), default=-1.0)
    highest = max((high for _, high in finite), default=0.0)
    error_map = ErrorMap(_round_width((highest - lowest) / MAP_COLUMNS))
    for columns in scores.batches():
        error_map.add(
            columns.true_log_p,
            columns.model_log_p,
            columns.edits.long(),
            estimated=columns.estimated,
        )
    return error_map


def _round_width(width: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as wide."""
    return next(
        w
        for exponent in range(-6, 9)
        for digit in (1, 2, 5)
        if (w := digit * 10.0**exponent) >= width
    )
