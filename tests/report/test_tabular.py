"""Tables in every form: full numbers for programs, rounded ones for readers."""

import csv
import io
import math
import re
from html import unescape

import pytest
from markdown_it import MarkdownIt

from lm_latent_eval.report.tabular import Interval, Table, rendered, together, write

TABLE = Table(
    ["model", "K", "bits", "error"],
    [
        ["a|b_c", 1000, -0.000012345678, Interval(-1.0, -2.0, 0.5)],
        ["50 %", 2, math.inf, None],
    ],
    notes=["Two models."],
)


FORMS = {
    "text": [
        "| model | K | bits | error |",
        "| --- | ---: | ---: | --- |",
        r"| a\|b_c | 1,000 | -1.235e-05 | -1 (-2 to 0.5) |",
        "| 50 % | 2 | ∞ |  |",
        "",
        "Two models.",
    ],
    "csv": [
        'model,K,bits,error,"error, lower","error, upper"',
        "a|b_c,1000,-1.2345678e-05,-1.0,-2.0,0.5",
        "50 %,2,inf,,,",
    ],
    "latex": [
        r"\begin{tabular}{lrrl}",
        r"\toprule",
        r"model & K & bits & error \\",
        r"\midrule",
        r"a|b\_c & 1,000 & $-1.235 \times 10^{-5}$ & $-1$ ($-2$ to 0.5) \\",
        r"50 \% & 2 & $\infty$ &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_by_hand(form):
    assert rendered(TABLE, form).splitlines() == FORMS[form]
    unknown = Interval(math.nan, 1.0, 2.0)
    empty = [["50 %", 2, math.inf, unknown], ["50 %", 2, math.inf, math.nan]]
    row = next(line for line in FORMS[form] if "50" in line)
    shown = rendered(Table(TABLE.head, [*TABLE.rows[:1], *empty]), form)
    assert shown.count(row) == 2, "a NaN is an empty cell"


HOSTILE = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "a | b",
    "a\n\n# b",
    "![a](http://b/c.png)",
    "`a`\\|`b`",
    "&lt;b&gt;",
    "<!-- /lm-latent-eval -->",
    "\x1b[31mred",
    "=cmd|' /C calc'!A0",
    "@SUM(1,1)",
    "-1+1",
    "\t=1+1",
    "\\input{/etc/passwd}",
    "%\n\\input{/etc/passwd}",
    "$^2$",
)


@pytest.mark.parametrize("words", HOSTILE)
def test_words_of_a_file_are_shown_and_not_obeyed(words):
    table = Table([words, "b"], [[words, 1.0], ["c", 2.0]])
    shown = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    for text in (rendered(table, "text"), together({words: table}, "text")):
        html = MarkdownIt("commonmark").enable("table").render(text)
        tags = {*re.findall(r"<(\w+)", html)}
        assert tags <= {"table", "thead", "tbody", "tr", "th", "td", "p"}, html
        cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", html, re.DOTALL)
        assert len(cells) == 6, html
        assert " ".join(unescape(cells[0]).split()) == shown
    rows = list(csv.reader(io.StringIO(rendered(table, "csv"))))
    assert len(rows) == 3
    for cell in (rows[0][0], rows[1][0]):
        assert cell.removeprefix("'") == words
        assert not re.match(r"\s*[=@+-]", cell)
    for text in (rendered(table, "latex"), together({words: table}, "latex")):
        code = re.sub(r"(?m)(?<!\\)%.*$", "", text)
        assert "\\input" not in code and "\x1b" not in code
        assert code.count("\n") <= 8


def test_numbers_and_signs_stay_what_they_are():
    table = Table(["a"], [["-0.5"], ["-"], ["+"], [-1.0], ["a-b"]])
    assert rendered(table, "csv").split() == ["a", "-0.5", "-", "+", "-1.0", "a-b"]


def test_rows_may_lack_columns():
    table = Table.of([{"task": "a", "value": 1.0}, {"task": "b", "acc": 0.5}])
    assert rendered(table, "csv").split() == ["task,value,acc", "a,1.0,", "b,,0.5"]
    with pytest.raises(ValueError, match="no numbers for a table"):
        Table.of([])


def test_files_are_named_by_their_form(tmp_path):
    write(TABLE, tmp_path / "new" / "figure_0.85")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"figure_0.85.csv", "figure_0.85.tex"}
    shown = together({"one": TABLE, "two": TABLE}, "latex")
    assert shown.startswith("% one\n\\begin") and "\n\n% two\n\\begin" in shown
