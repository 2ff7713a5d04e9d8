"""Tables in every form: full numbers for programs, rounded ones for readers."""

from __future__ import annotations

import csv
import math

import pytest

from lm_latent_eval.report.tabular import Interval, Table, rendered, together, write

TABLE = Table(
    ["model", "K", "bits", "error"],
    [
        ["a|b_c", 1000, -0.000012345678, Interval(-1.0, -2.0, 0.5)],
        ["50 %", 2, math.inf, None],
    ],
    notes=["Two models."],
)


def test_readers_get_rounded_numbers_and_the_notes():
    assert rendered(TABLE, "text").splitlines() == [
        "| model | K | bits | error |",
        "| --- | ---: | ---: | --- |",
        r"| a\|b_c | 1,000 | -1.235e-05 | -1 (-2 to 0.5) |",
        "| 50 % | 2 | ∞ |  |",
        "",
        "Two models.",
    ]


def test_programs_get_numbers_in_full_and_intervals_in_columns():
    rows = list(csv.reader(rendered(TABLE, "csv").splitlines()))
    assert rows == [
        ["model", "K", "bits", "error", "error, lower", "error, upper"],
        ["a|b_c", "1000", "-1.2345678e-05", "-1.0", "-2.0", "0.5"],
        ["50 %", "2", "inf", "", "", ""],
    ]


def test_papers_get_booktabs_and_mathematics():
    assert rendered(TABLE, "latex").splitlines() == [
        r"\begin{tabular}{lrrl}",
        r"\toprule",
        r"model & K & bits & error \\",
        r"\midrule",
        r"a|b\_c & 1,000 & $-1.235 \times 10^{-5}$ & $-1$ ($-2$ to 0.5) \\",
        r"50 \% & 2 & $\infty$ &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_rows_may_lack_columns():
    table = Table.of([{"task": "a", "value": 1.0}, {"task": "b", "acc": 0.5}])
    assert list(csv.reader(rendered(table, "csv").splitlines())) == [
        ["task", "value", "acc"],
        ["a", "1.0", ""],
        ["b", "", "0.5"],
    ]
    with pytest.raises(ValueError, match="no numbers for a table"):
        Table.of([])


def test_files_are_named_by_their_form(tmp_path):
    write(TABLE, tmp_path / "new" / "figure_0.85")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"figure_0.85.csv", "figure_0.85.tex"}
    shown = together({"one": TABLE, "two": TABLE}, "latex")
    assert shown.startswith("% one\n\\begin") and "\n\n% two\n\\begin" in shown
