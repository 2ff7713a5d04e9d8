"""The page of results: all in one file, and looked at in a browser."""

from __future__ import annotations

import html
import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.report import page
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.text import described
from lm_latent_eval.report.numbers import numbers
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record
from tests.environment import HANGS
from tests.means import normal
from tests.report.test_compare import (
    SPELLED,
    estimated,
    questions,
    record,
    sides_of,
    unjudged,
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH = {"phone": 390, "desk": 1280}
"""Pixels of a frame: Chromium has no window that is as narrow as a telephone's."""


def drawn(seed: int, spread: float) -> Record:
    """A record of importance sampling, with log-weights."""
    answers = []
    for n, noise in enumerate(normal(30, 60, seed=seed, sd=spread)):
        estimate = Estimate.from_log_weights(noise - 100 - n, num_tokens=21)
        about = {"text": f"text {n}", "words": 20 + n, "bytes": 100 + 5 * n}
        answers.append(Answer(n, estimate, f"0/{n}", **about))
    settings = {"model": "<b>kglm</b>", "estimator": "is", "num_samples": 20}
    return Record("t", settings, answers)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    output = tmp_path_factory.mktemp("page") / "report.html"
    sides = {"A": drawn(0, 0.5), "B": drawn(1, 1.5)}
    right = questions([True, True, False, True])
    runs = {name: [[record, right]] for name, record in sides.items()}
    labels = {"A": "first/run", "B": "second/run"}
    page.write(sides_of(runs), labels, output)
    return output


def test_a_band_is_of_texts_that_all_have_an_error():
    a_beam = estimated(drawn(0, 0.5), stderr=None)
    _, value, band, _ = page._interval("A", Run.of(a_beam))
    assert band == (value, value)
    _, value, (low, high), _ = page._interval(
        "A", Run.of(estimated(a_beam, stderr=0.1))
    )
    assert low < value < high


def test_a_band_holds_what_draws_missed_and_that_copies_share_them():
    """Of texts that are alike, so that draws alone make it; and of copies."""

    def width(made):
        _, _, (low, high), _ = page._interval("A", Run.of(made))
        return high - low

    drawn = estimated(record(kind="stochastic lower", spread=0.0), stderr=0.2)
    shared = [replace(answer, stream="0") for answer in drawn.answers[:5]]
    copies = replace(drawn, answers=[*shared, *drawn.answers[5:]])
    assert width(drawn) < width(copies)
    assert width(drawn) < width(estimated(drawn, stderr=0.25))
    assert width(drawn) < width(estimated(drawn, draws_degrees=1.0)), "of few parts"
    apart = record()
    twice = replace(apart, answers=[*apart.answers, *apart.answers])
    assert width(twice) == pytest.approx(width(apart)), "copies are one text"


def test_the_page_needs_nothing_else(path):
    text, tags = path.read_text(), []
    assert len(text) < 1_000_000
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, given: tags.append((tag, dict(given)))
    parser.feed(text)
    names = [tag for tag, _ in tags]
    assert not {"link", "img", "iframe", "object"} & {*names}
    loading = {"src", "href", "srcset", "data"}
    inside = [given[k] for _, given in tags for k in loading & given.keys()]
    assert all(str(each).startswith("#") for each in inside), inside
    assert not re.search(r"@import|url\((?!#)", text)
    assert names.count("details") == names.count("summary") == 2, "a task each"
    assert names.count("table") == 6, "tasks, ranking; two of texts, two of questions"
    assert names.count("svg") == 3
    axes = re.findall(r">([^<>]+)</text>", text)
    assert {"bits a byte", "accuracy, percentage points"} <= {*axes}
    assert "0" * 9 not in text, "numbers as their digits tell them"
    code = r"<script\b.*?</script>"
    assert "$" not in re.sub(code, "", text, flags=re.DOTALL)


def test_names_are_text_and_not_tags(path):
    text = path.read_text()
    assert "<b>kglm" not in text
    assert "&lt;b&gt;kglm" in text


def test_a_page_says_which_runs_of_which_day(tmp_path):
    output, made = tmp_path / "report.html", record()
    settings = SPELLED | {"date": 1764460800.0, "lm_latent_eval": "0.3.9"}
    runs = [Run.of(replace(made, settings=settings))]
    page.write({"mine": [runs]}, {"mine": "out/mine"}, output)
    shown = output.read_text()
    assert "<title>mine</title>" in shown
    assert "<code>out/mine</code>" in shown
    assert "(2025-11-30, lm_latent_eval 0.3.9)" in shown
    assert re.search(r"Made on 20\d\d-\d\d-\d\d by lm-latent-eval", shown)


def test_models_that_do_not_compare_are_shown_still(tmp_path):
    output = tmp_path / "deep" / "report.html"
    page.write(sides_of({"A": [[record()]], "B": [[record(texts=9)]]}), {}, output)
    text = output.read_text()
    assert "Not compared: A has 60 texts and B 9" in text
    # A task without right answers leaves the others.
    sides = {"A": [[unjudged(), record()]], "B": [[unjudged(), record(3.0)]]}
    page.write(sides_of(sides), {}, output)
    text = output.read_text()
    assert "no accuracy to compare" in text and "B takes" in text


def test_models_that_differ_in_options_are_told_apart_by_those(tmp_path):
    """And by no fact of their runs."""
    output, known = tmp_path / "report.html", SPELLED | {"checkpoint": "same", "k": 1}
    said = [
        known | {"close": "natural", "date": 1, "configs": {}},
        known | {"close": "forced", "date": 2, "configs": {"a": 1}},
        known | {"close": "none", "checkpoint": "another"},
    ]
    runs = [[record(float(n), settings=each)] for n, each in enumerate(said)]
    page.write(
        sides_of({name: [run] for name, run in zip("ABC", runs, strict=True)}),
        {},
        output,
    )
    cells = re.findall(r"<td>\s*(.*(?:same|another).*)\s*</td>", output.read_text())
    assert [cell.partition(", ")[2] for cell in cells] == [
        "same, close=natural",
        "same, close=forced",
        "another",
    ]


def test_a_side_is_described_by_what_all_of_its_runs_were_given():
    """Not by what only one of several sides knows of, nor by a file that is a part."""
    known = SPELLED | {"checkpoint": "same", "seed": 0, "run_digest": "ab"}
    a = [record(settings=known | {"seed": n, "limit": 5}) for n in (0, 1)]
    b = [record(settings=known | {"seed": n, "run_digest": "cd"}) for n in (2, 3)]
    sides = [Side(n, [*map(Run.of, runs)]) for n, runs in (("A", a), ("B", b))]
    said = [described(side, sides).partition("2 runs")[2] for side in sides]
    assert said == [", limit=5", ""]


def test_each_run_of_a_model_is_shown(tmp_path):
    output = tmp_path / "report.html"
    sides = {"A": [[record(0.0)], [record(9.0)]], "B": [[record(5.0)]]}
    page.write(sides_of(sides), {}, output)
    shown = output.read_text()
    runs = (*sides["A"], *sides["B"])
    rates = [numbers(Run.of(run))["bits_per_byte"].value for [run] in runs]
    assert rates[1] < rates[2] < rates[0], "premise: the first run tells otherwise"
    for rate, name in zip(rates, ("A, run 1", "A, run 2", "B"), strict=True):
        assert re.search(rf">{name}<.{{1,600}}{rate:.3f}", shown, re.DOTALL)


def test_decimals_come_from_each_number_s_own_error(tmp_path):
    """A large number beside a small one takes no digit of its error away."""
    output = tmp_path / "report.html"
    bad = record(-38.0, spread=20.0)
    page.write(sides_of({"A": [[record()]], "B": [[bad]]}), {}, output)
    shown = output.read_text()
    for made in (record(), bad):
        found = numbers(Run.of(made))["word_perplexity"]
        places = max(1 - math.floor(math.log10(found.stderr)), 0)
        assert f">{found.value:.{places}f}<" in shown
        assert f">{found.stderr:.{places}f}<" in shown


# -- in a browser --------------------------------------------------------------------

FRAME = """<!DOCTYPE html>
<meta name="color-scheme" content="light dark"><body style="margin: 0">
<pre id="found"></pre>
<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>
"""
PROBE = """
<script>
for (const each of document.querySelectorAll("details")) each.open = true;
const table = document.querySelectorAll("table")[2];
const place = [...table.querySelectorAll("th")].findIndex(
  head => head.textContent === "bits per byte");
const column = () => [...table.tBodies[0].rows].map(
  row => Number(row.children[place].dataset.value));
const head = table.querySelectorAll("th")[place];
head.click(); const down = column();
head.click(); const up = column();
const ink = getComputedStyle(document.querySelector("svg text")).fill;
parent.document.getElementById("found").textContent = JSON.stringify({
  width: document.scrollingElement.scrollWidth, window: innerWidth, down, up, ink,
  tables: [...document.querySelectorAll(".scroll")].map(
    each => each.scrollWidth - each.clientWidth),
  columns: Math.max(...[...document.querySelectorAll("tr")].map(
    row => [...row.children].filter(cell => cell.offsetWidth).length)),
  paper: getComputedStyle(document.body).backgroundColor,
  charts: [...document.querySelectorAll("svg")].map(
    svg => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height]),
});
</script>
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("window", "dark"), [("phone", True), ("desk", False)])
def test_a_browser_shows_it(path, tmp_path, window, dark):
    names = (os.environ.get("CHROMIUM", ""), *BROWSERS)
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium, or CHROMIUM=PATH")
    probed = tmp_path / "probed.html"
    inner = path.read_text().replace("</body>", f"{PROBE}</body>")
    framed = FRAME.format(width=WIDTH[window], page=html.escape(inner))
    probed.write_text(framed)
    shown = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={max(WIDTH.values())},900",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            probed.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS,
    ).stdout
    found = json.loads(html.unescape(re.search(r'id="found">(.*?)</pre>', shown)[1]))
    assert found["window"] == WIDTH[window], "premise"
    assert found["width"] <= found["window"], "nothing is cut off at the side"
    assert max(found["tables"]) <= 0, "nor is a table"
    assert (found["columns"] == 4) is (window == "phone")
    assert found["down"] == sorted(found["down"], reverse=True)
    assert found["up"] == sorted(found["up"])
    assert found["up"] != found["down"], "premise"
    assert all(w > 300 and 60 < h < w for w, h in found["charts"]), found["charts"]
    ink, paper = (
        sum(map(int, re.findall(r"\d+", found[part])[:3])) for part in ("ink", "paper")
    )
    assert (ink > paper) is dark
