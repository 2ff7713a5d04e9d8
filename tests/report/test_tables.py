"""Tables in every form: full numbers for programs, rounded ones for readers."""

import csv
import io
import math
import re
from html import unescape

import pytest
from markdown_it import MarkdownIt

from lm_latent_eval.report.tables import frame, rendered

TABLE = frame(
    [
        {"model": "a|b_c", "K": 1000, "bits": -0.012345678, "±": 0.00021},
        {"model": "50 %", "K": 2, "bits": math.inf, "±": math.nan},
        {"model": "c"},
    ]
)
FORMS = {
    "text": [
        "| model | K | bits | ± |",
        r"| a\|b_c | 1,000 | -0.01235 | 0.00021 |",
        "| 50 % | 2 | ∞ | |",
        "| c | | | |",
    ],
    "csv": [
        "model,K,bits,±",
        "a|b_c,1000,-0.012345678,0.00021",
        "50 %,2,inf,",
        "c,,,",
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_by_hand(form):
    lines = rendered(TABLE, form, {"bits": ["±"]}).splitlines()
    if form == "text":  # but for the rule, and the width of columns
        assert re.fullmatch(r"[|:-]+", lines.pop(1))
    assert [re.sub(" +", " ", line) for line in lines] == FORMS[form]


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
)


@pytest.mark.parametrize("words", HOSTILE)
def test_words_of_a_file_are_shown_and_not_obeyed(words):
    table = frame([{words: words, "b": 1.0}, {words: "c", "b": 2.0}])
    shown = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    html = MarkdownIt("commonmark").enable("table").render(rendered(table, "text"))
    tags = {*re.findall(r"<(\w+)", html)}
    assert tags <= {"table", "thead", "tbody", "tr", "th", "td"}, html
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", html, re.DOTALL)
    assert len(cells) == 6, html
    assert " ".join(unescape(cells[0]).split()) == shown
    rows = list(csv.reader(io.StringIO(rendered(table, "csv"))))
    assert len(rows) == 3
    for cell in (rows[0][0], rows[1][0]):
        assert cell.removeprefix("'") == words
        assert not re.match(r"\s*[=@+-]", cell)


def test_numbers_and_signs_stay_what_they_are():
    table = frame([{"a": cell} for cell in ("-0.5", "-", "+", -1.0, "a-b")])
    assert rendered(table, "csv").split() == ["a", "-0.5", "-", "+", "-1.0", "a-b"]


def test_rows_may_lack_columns():
    table = frame([{"task": "a", "value": 1.0}, {"task": "b", "acc": 0.5}])
    assert rendered(table, "csv").split() == ["task,value,acc", "a,1.0,", "b,,0.5"]
    with pytest.raises(ValueError, match="no numbers for a table"):
        frame([])
