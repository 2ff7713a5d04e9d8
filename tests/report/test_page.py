"""The page of results: all in one file, and looked at in a browser."""

from __future__ import annotations

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
from lm_latent_eval.report import charts, page
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.text import described
from lm_latent_eval.report.figures import ENDINGS
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
WIDTH = {"phone": 500, "desk": 1280}
"""Chromium has no narrower window; what fits 500 was made to fit any."""


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


def test_a_chart_of_shares_has_every_value_in_its_place():
    """Three of forty-one above 0.7 are 3/41 there."""
    values = [0.1 + 0.01 * n for n in range(38)] + [0.8, 0.9, 1.0]
    [axes] = charts.shares({"A": values}, ["A"], "k", "share above", 0.7).axes
    x, y = axes.get_lines()[0].get_data()
    after = min(n for n in range(len(x)) if x[n] > 0.7)  # steps reach back
    assert y[after] == pytest.approx(3 / 41)


def test_a_flat_curve_is_flat_at_its_number():
    flat = [(1e3, 0.34407021), (2e3, 0.34407022), (5e3, 0.34407020)]
    figure = charts.lines({"A": flat}, ["A"], "samples", "bits per byte")
    low, high = figure.axes[0].get_ylim()
    assert high - low == pytest.approx(3.44e-4, rel=1e-3)
    svg = charts.svg(figure)
    assert ">0.344" in svg and "1e" not in re.sub(r"<[^>]*>", "", svg)


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


def test_charts_are_files_for_papers(tmp_path):
    output, figures = tmp_path / "report.html", tmp_path / "figures"
    runs = [[record(), questions([True, False])]]
    page.write(sides_of({"A": runs, "B": runs}), {}, output, figures)
    files = {file.name for file in figures.iterdir()}
    stems = {name.partition(".")[0] for name in files}
    assert len(stems) == output.read_text().count("<svg") > 1
    assert files == {f"{stem}.{kind}" for stem in stems for kind in ENDINGS}
    pdf = (figures / "t-models.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf


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
    assert names.count("table") == 6, "models, differences, worst, gap; of questions: 2"
    assert names.count("svg") == 6
    axes = re.findall(r">([^<>]+)</text>", text)
    assert {"bits a byte", "accuracy, percentage points"} <= {*axes}
    assert "60" not in axes, "two powers of ten: no numbers between them collide"
    copied = re.findall(r"<textarea[^>]*>(.*?)</textarea>", text, re.DOTALL)
    assert [each.strip()[:6] for each in copied[:2]] == ["\\begin", "| task"]
    assert "0" * 9 not in text, "numbers as their digits tell them"
    code = r"<(script|textarea)\b.*?</\1>"
    assert "$" not in re.sub(code, "", text, flags=re.DOTALL)


def test_names_are_text_and_not_tags(path):
    text = path.read_text()
    assert "<b>kglm" not in text
    assert "&lt;b&gt;kglm" in text


def test_a_pass_is_as_many_samples_as_it_has_histories():
    """60 weights stand for 60 samples, or for ten times as many."""
    one, ten = drawn(0, 0.5), estimated(drawn(0, 0.5), num_samples=600)
    curves = [page._curve(each.answers) for each in (one, ten)]
    assert [x for x, _ in curves[1]] == [10 * x for x, _ in curves[0]]
    assert curves[0][-1][0] == 60


def test_models_that_do_not_compare_are_shown_still(tmp_path):
    output = tmp_path / "deep" / "report.html"
    page.write(sides_of({"A": [[record()]], "B": [[record(texts=9)]]}), {}, output)
    text = output.read_text()
    assert "Not compared: A has 60 texts and B 9" in text
    # Without log-weights there is no curve, and it is said why.
    bare = estimated(drawn(0, 1.0), log_weights=())
    page.write(sides_of({"A": [[bare]]}), {}, output)
    assert "log_weights=true" in output.read_text()
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
    sides = [Side.of(n, [*map(Run.of, runs)]) for n, runs in (("A", a), ("B", b))]
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

PROBE = """
<pre id="found"></pre>
<script>
const table = document.querySelectorAll("table")[2];
const place = [...table.querySelectorAll("th")].findIndex(
  head => head.textContent === "words");
const column = () => [...table.tBodies[0].rows].map(
  row => Number(row.children[place].dataset.value));
const head = table.querySelectorAll("th")[place];
head.click(); const down = column();
head.click(); const up = column();
const ink = getComputedStyle(document.querySelector("svg text")).fill;
document.getElementById("found").textContent = JSON.stringify({
  width: document.scrollingElement.scrollWidth, window: innerWidth, down, up, ink,
  tables: [...document.querySelectorAll(".scroll")].map(
    each => each.scrollWidth - each.clientWidth),
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
    probed.write_text(path.read_text().replace("</body>", f"{PROBE}</body>"))
    shown = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={WIDTH[window]},900",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            probed.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS,
    ).stdout
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', shown)[1])
    assert found["width"] <= found["window"], "nothing is cut off at the side"
    if window == "desk":
        assert max(found["tables"]) <= 0, "nor is a table"
    assert found["down"] == sorted(found["down"], reverse=True)
    assert found["up"] == sorted(found["up"])
    assert found["up"] != found["down"], "premise"
    assert all(w > 300 and 60 < h < w for w, h in found["charts"]), found["charts"]
    ink, paper = (
        sum(map(int, re.findall(r"\d+", found[part])[:3])) for part in ("ink", "paper")
    )
    assert (ink > paper) is dark
