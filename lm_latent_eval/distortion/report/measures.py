"""Measurements of ``distort measure``: columns in, numbers and a figure out.

Each measure reads named folders and writes ``STEM.json``, all of its numbers, and
``STEM.png``, ``STEM.svg`` and ``STEM.pdf``, its figure. It returns a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from lm_latent_eval.distortion.columns import Columns, ScoresFolder, read_epochs
from lm_latent_eval.distortion.learners.options import History
from lm_latent_eval.distortion.report.curves import (
    draw_epochs,
    plot_amount,
    plot_curves,
    plot_densities,
    plot_lengths,
    plot_productivity,
    plot_training,
)
from lm_latent_eval.distortion.report.maps import (
    draw_estimates,
    draw_map,
    plot_histograms,
)
from lm_latent_eval.distortion.report.style import (
    COLUMN,
    ERROR,
    LENGTH_PANELS,
    PAGE,
    colours,
    legend,
    shades,
    width_of,
    write_json,
)
from lm_latent_eval.distortion.statistics import (
    ErrorBin,
    ErrorCurve,
    ErrorMap,
    ErrorTrajectory,
    JointHistogram,
    LengthErrors,
    ProductivityCurve,
    mean_sentence_perplexity,
)
from lm_latent_eval.distortion.statistics.bins import Bins
from lm_latent_eval.estimators import Bound, perplexity
from lm_latent_eval.options import positive
from lm_latent_eval.report.figures import page
from lm_latent_eval.report.tabular import Cell, Interval, Table
from lm_latent_eval.text.words import split


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


def open_trajectory(
    directory: Path, num_bins: int = 50
) -> tuple[ErrorTrajectory, History]:
    """Read a trajectory, and the history of its learner, in whose folder it is.

    Raises:
        ValueError: If it is none, or a model or language gives probability zero.
    """
    epochs = read_epochs(directory)
    model_log_p = torch.stack([columns.model_log_p for columns in epochs])
    found = ErrorTrajectory.of(epochs[0].true_log_p, model_log_p, num_bins=num_bins)
    return found, History.read(directory.resolve().parent.parent)


Folders = Mapping[str, Path]
"""Name -> folder of scores, or of a trajectory."""
TENTHS = 10
WHOLE = "whole texts"
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


def language(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure one model on the folders ``test`` and ``random`` (figure 7)."""
    test, random = (Comparison.open(_named(folders, n)) for n in ("test", "random"))
    counts = test.histogram(num_bins)
    curve, random_curve = (each.curve(num_bins=num_bins) for each in (test, random))
    with page(stem, width=PAGE, height=2.3) as figure:
        left, middle, right = figure.subplots(1, 3)
        plot_histograms(figure, [left], [("sequences of the language", counts)])
        for ax, name, each, color in (
            (middle, "sequences of the language", curve, "#0072b2"),
            (right, "random sequences", random_curve, "#cc79a7"),
        ):
            plot_curves(ax, {name: each}, {name: color})
            ax.set_title(name)
        legend(figure)
    write_json(stem, {"histogram": counts, "test": curve, "random": random_curve})
    return error_table({"test": test, "random": random})


def training(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure errors over the epochs of trajectories (figure 3)."""
    opened = {name: open_trajectory(path, num_bins) for name, path in folders.items()}
    panels = [(n, t, h.best.epoch) for n, (t, h) in opened.items()]
    draw_epochs(stem, panels, plot_training, sharey=True, height=2.8)
    found = {name: trajectory for name, (trajectory, _) in opened.items()}
    write_json(stem, found)
    rows = [
        {
            "name": name,
            "epoch": epoch,
            "mean error": overall,
            "rarest bin": bins[0],
            "most probable bin": bins[-1],
        }
        for name, trajectory in found.items()
        for epoch, (overall, bins) in enumerate(
            zip(trajectory.overall, trajectory.mean_error, strict=True), start=1
        )
    ]
    return Table.of(rows)


def amount(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure errors over sequences seen in training (figures 4, 8 and 10)."""
    found = {}
    for name, path in folders.items():
        trajectory, history = open_trajectory(path, num_bins)
        found[name] = trajectory, history.epochs[0].sequences_seen
    panels = [(name, *each) for name, each in found.items()]
    draw_epochs(stem, panels, plot_amount, sharey=False, height=3.0)
    write_json(
        stem,
        {
            name: {
                **asdict(trajectory),
                "relative_change": trajectory.relative_change,
                "sequences_an_epoch": size,
            }
            for name, (trajectory, size) in found.items()
        },
    )
    rows = [
        {
            "name": name,
            "sequences seen": size * len(trajectory.overall),
            "first mean error": trajectory.overall[0],
            "last": trajectory.overall[-1],
            "rarest bin": trajectory.mean_error[-1][0],
            "most probable bin": trajectory.mean_error[-1][-1],
        }
        for name, (trajectory, size) in found.items()
    ]
    return Table.of(rows)


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


def temperatures(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure models of languages that are named by their temperatures (figure 6)."""
    values = [*map(_temperature, folders)]
    if twice := next((t for t in values if values.count(t) > 1), None):
        raise ValueError(f"there are two folders of the temperature {twice:g}")
    opened = map(Comparison.open, folders.values())
    found = dict(zip(values, opened, strict=True))
    curves = {t: each.curve(num_bins=num_bins) for t, each in found.items()}
    hue = dict(zip(sorted(found), shades(len(found)), strict=True))
    with page(stem, width=PAGE, height=2.9) as figure:
        left, right = figure.subplots(1, 2)
        known = {t: each.columns.true_log_p for t, each in found.items()}
        plot_densities(left, known, hue)
        named = {f"T = {t:g}": curves[t] for t in hue}
        plot_curves(right, named, dict(zip(named, hue.values(), strict=True)))
        left.set_title("languages")
        right.set_title("models")
        legend(figure)
    write_json(stem, {f"{t:g}": curve for t, curve in curves.items()})
    return error_table({f"T = {t:g}": each for t, each in found.items()})


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


def perplexities(folders: Folders, stem: Path, num_bins: int) -> Table:
    """Measure perplexities under models and languages (tables 4 and 5)."""
    rows = {name: perplexity_row(path) for name, path in folders.items()}
    write_json(stem, rows)
    head = ["name", "corpus", "mean of sentences", "±", "corpus (language)"]
    return Table(head, [[name, *row.values()] for name, row in rows.items()])


UNBINNED = ("perturbed", "lengths", "perplexities")
"""Measures that need no number of bins."""
MEASURES: dict[str, Callable[[Folders, Path, int], Table]] = {
    each.__name__: each
    for each in (
        errors,
        language,
        training,
        amount,
        perturbed,
        random,
        temperatures,
        lengths,
        perplexities,
    )
}


def novelty(
    texts: Callable[[], Iterator[str]], orders: Sequence[int], stem: Path
) -> Table:
    """Measure the n-grams of words within texts, and whole texts.

    Args:
        texts: Opens the texts anew, once an order: nothing but counts is kept.
        orders: The n of n-grams.
        stem: Of the files ``STEM.json``, ``.png``, ``.svg`` and ``.pdf``.

    Returns:
        A table of the whole text's productivity.

    Raises:
        ValueError: If an n is below 1, or no text is as long.
    """
    curves = {WHOLE: ProductivityCurve.of(texts())}
    for order in orders:
        if order < 1:
            raise ValueError(f"an n-gram has at least 1 word; got n = {order}")
        grams = (gram for text in texts() for gram in _grams(text, order))
        try:
            curves[f"{order}-grams"] = ProductivityCurve.of(grams)
        except ValueError as err:
            raise ValueError(f"{order}-grams of words: {err}") from err
    shown = {n: c for n, c in curves.items() if n != WHOLE} or curves
    with page(stem, width=COLUMN, height=2.8) as figure:
        plot_productivity(figure.subplots(), shown)
        legend(figure)
    write_json(stem, curves)
    rows = [
        {
            "of": name,
            "N": curve.sample_sizes[-1],
            "types": curve.num_types[-1],
            "once": curve.num_hapax[-1],
            "probability that the next is new": curve.productivity[-1],
            "±": curve.stderr[-1],
        }
        for name, curve in curves.items()
    ]
    return Table.of(rows)


def _grams(text: str, order: int) -> Iterator[tuple[str, ...]]:
    words = split(text)
    return zip(*(islice(words, first, None) for first in range(order)), strict=False)


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


def perplexity_row(path: Path) -> dict[str, float]:
    """Return perplexities of the sequences of a folder of scores."""
    columns = ScoresFolder.open(path).columns()
    columns = columns[columns.edits == 0]
    tokens = int(columns.num_tokens.sum())
    mean, stderr = mean_sentence_perplexity(
        columns.model_log_p, columns.num_tokens.long(), estimated=columns.estimated
    )
    return {
        "corpus": perplexity(columns.model_log_p.sum().item(), tokens),
        "mean_of_sentences": mean,
        "stderr": stderr,
        "language": perplexity(columns.true_log_p.sum().item(), tokens),
    }


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


def _named(folders: Folders, name: str) -> Path:
    if name not in folders:
        raise ValueError(f"this measure needs {name}=DIR; got {', '.join(folders)}")
    return folders[name]


def _temperature(name: str) -> float:
    try:
        return positive("temperature", name)
    except ValueError as err:
        raise ValueError(
            f"{name!r} is no temperature: name each folder by its language's, 0.85=DIR"
        ) from err


def _round_width(width: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as wide."""
    return next(
        w
        for exponent in range(-6, 9)
        for digit in (1, 2, 5)
        if (w := digit * 10.0**exponent) >= width
    )
