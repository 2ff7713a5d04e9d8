"""The whole study in small, by its command; tables, claims and figures of rows."""

from __future__ import annotations

import csv
import math
import re
import shutil

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from lm_latent_eval.cli import main
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.report import figures
from lm_latent_eval.study.claims import StudyColumn, claims
from lm_latent_eval.study.figures import _figure, _looks, _near, ridges
from lm_latent_eval.study.rows import read
from lm_latent_eval.study.tables import as_markdown
from tests.means import normal

TEXTS = (
    "She studied in the town.",
    "It is known for its plums and its gardeners.",
    "The town has a bridge.",
    "She was born in the town.",
    "He was a gardener.",
    "She was a strict teacher.",
    "The town is known for its bridge.",
    "He settled in the town.",
    "She left the town.",
    "It has a bridge.",
)
"""Ten, of which there is a spread."""
TABLES = {"tables.md"} | {
    f"{name}.{kind}"
    for name in ("table_1", "table_1_spread", "table_2")
    for kind in ("csv", "tex")
}
FIGURES = [f"figure_{n}.{kind}" for n in (2, 3, 4) for kind in ("png", "svg", "pdf")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of the embedded model, by command."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    command = ["study", "--pretrained", str(CHECKPOINT)]
    command += ["--data", str(folder / "texts.txt"), "--output", str(folder / "out")]
    command += ["--temper", "smoothing", "peeking", "--temperatures", "0.9", "1", "2"]
    command += ["--num-samples", "50", "--replicate", "10", "--beam-widths", "1", "10"]
    assert main(command) == 0
    return folder


def test_tables_hold_the_rows_numbers(folder):
    out = folder / "out"
    text, found = (out / "tables.md").read_text("utf-8"), read(out / "rows.jsonl")
    # (2 x 3 temperatures + 3 others) x 2 levels x 6 sizes, and 2 x 2 beams.
    assert len(found) == 9 * 2 * 6 + 4
    which = {"estimator": "is", "proposal": "peeking", "level": "corpus"}
    which |= {"num_samples": 50, "temperature": 2}
    [row] = [row for row in found if row.items() >= which.items()]
    assert 10 < row["perplexity"] < 1000, "premise"
    lines = [line for line in text.splitlines() if "| τ = 2 |" in line]
    shown = float(lines[0].split("|")[4])
    assert shown == pytest.approx(row["perplexity"], rel=5e-4), "in four digits"
    assert len(lines) == 3, "corpus level, instance level, spread"
    head, *rows = csv.reader((out / "table_1.csv").read_text("utf-8").splitlines())
    assert head == ["level", "draws", "kglm, smoothing", "kglm, peeking"]
    [cells] = [cells for cells in rows if cells[:2] == ["corpus", "τ = 2"]]
    assert float(cells[3]) == row["perplexity"], "in full"
    spread = (out / "table_1_spread.tex").read_text(encoding="utf-8")
    assert r"\toprule" in spread and r"$\tau$ = 2" in spread and " to " in spread
    assert re.findall(r"^\| k = (\d+) ", text, re.M) == ["1", "10"]
    assert re.findall(r"^- \((.)\)", text, re.M) == list("abcde")


def nothing_is_cut_off(path):
    drawn = (imread(path.with_suffix(".png"))[..., :3] < 0.99).any(-1)
    assert 0.01 < drawn.mean() < 0.6
    edges = drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]
    assert not any(edge.any() for edge in edges)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_figures_show_all_that_they_name_and_cut_nothing_off(folder, number):
    path = folder / "out" / f"figure_{number}"
    nothing_is_cut_off(path)
    text = path.with_suffix(".svg").read_text(encoding="utf-8")
    named = ["token perplexity", "kglm, smoothing", "kglm, peeking"]
    named += ["nonpeeking, τ = 1", *(f"τ = {t}" for t in ("0.9", "1", "2"))]
    assert not [each for each in named if each not in text]


def test_temperatures_near_1_have_a_panel_that_tells_them_apart():
    """Whose axis neither the fewest samples nor far temperatures decide."""
    values = {0.5: [90, 30, 30], 0.9: [50, 10.1, 10.02], 1.0: [99, 10, 10]}
    curves = {("peeking", t): v for t, v in (values | {1.1: [20, 9.9, 9.99]}).items()}
    made = StudyColumn(
        {**SETTINGS, "temperatures": [0.5, 0.9, 1.0, 1.1]}, rows(curves, {}), "peeking"
    )
    ax, [looks] = Figure().subplots(), _looks([made])
    _near(ax, made, looks, math.inf)
    shown = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert shown["τ = 0.9"][1:] == pytest.approx([1, 0.2])
    assert shown["τ = 1.1"][1:] == pytest.approx([-1, -0.1])
    assert ax.get_ylim() == pytest.approx((-0.22, 0.22)), "of the later half, 1.1 times"
    alone = StudyColumn(SETTINGS, rows({("peeking", 1.0): [9, 8, 7]}, {}), "peeking")
    empty = Figure().subplots()
    _near(empty, alone, *_looks([alone]), math.inf)
    assert not empty.has_data()


def test_areas_below_a_ridge_are_shares_of_the_estimates(tmp_path, monkeypatch):
    """Of a skewed one beside one a hundred times narrower."""
    curves = {("peeking", 1.0): [9, 9, 9], ("peeking", 2.0): [9, 9, 9]}
    made = StudyColumn(SETTINGS | {"replicate": 100}, rows(curves, {}), "peeking")
    spread = normal(1, 4000, seed=0)[0]
    for row in made.rows:
        drawn = (0.6 if row["temperature"] == 2 else 0.006) * spread
        row |= {"predicted": drawn.exp().tolist(), "replicates": [1.0]}
    ax, [looks] = Figure().subplots(), _looks([made])
    ridges(ax, made, looks)
    assert [t.get_text()[-7:] for t in ax.get_yticklabels()] == ["± 0.6 %", " ± 60 %"]
    for base, ridge in zip((0, -1), ax.patches[:2], strict=True):
        x, y = ax.transScale.transform(ridge.get_xy()[:-1]).T
        below, all_of_it = (
            np.trapezoid((y - base)[x <= most], x[x <= most]) for most in (0, math.inf)
        )
        assert below / all_of_it == pytest.approx(0.5, abs=0.03), "median"
    monkeypatch.setattr(figures, "_UNDATED", {"png": figures._UNDATED["png"]})
    _figure([made] * 4, tmp_path / "four", {"ridges": ridges})
    nothing_is_cut_off(tmp_path / "four")


def test_a_report_runs_no_model_and_gives_the_same_files(
    folder, tmp_path, capsys, monkeypatch
):
    out, command = folder / "out", ["study", "--output", str(tmp_path), "--report"]
    assert {p.name for p in out.iterdir()} >= {*FIGURES, *TABLES}
    monkeypatch.delitem(figures._UNDATED, "pdf")  # most of drawing
    assert main([*command, str(out)]) == 0
    again = {*TABLES, *(name for name in FIGURES if not name.endswith("pdf"))}
    assert {p.name for p in tmp_path.iterdir()} == again
    for name in again:
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name
    capsys.readouterr()
    monkeypatch.setattr("lm_latent_eval.study.figures.draw_figures", lambda *_: None)
    assert main([*command, str(out), str(out)]) == 0
    twice = "| kglm, smoothing (1) | kglm, peeking (1) | kglm, smoothing (2) |"
    assert capsys.readouterr().out.count(twice) == 3
    assert main([*command, str(out), "--format", "latex"]) == 0
    shown = capsys.readouterr().out
    tables = ["table_1", "table_1_spread", "table_2"]
    assert re.findall(r"^% (\w+)$", shown, re.M) == tables


# -- claims on made-up rows ----------------------------------------------------------


def rows(curves: dict[tuple[str, float], list[float]], beams: dict[int, float]):
    """Perplexities of 1, 10 and 100 samples; the corpus level is twice as large."""
    names = ("estimator", "proposal", "temperature", "level", "num_samples")
    found = [
        (("is", *setting, level, size), factor * value)
        for setting, values in curves.items()
        for size, value in zip((1, 10, 100), values, strict=True)
        for level, factor in (("instance", 1), ("corpus", 2))
    ]
    for width, value in beams.items():
        found.append((("beam", "peeking", 1.0, "instance", width), value))
    return [
        dict(zip(names, about, strict=True))
        | {"texts": 4, "tokens": 40, "log_likelihood": -40 * math.log(value)}
        | {"perplexity": value, "perplexity_of_mean_log_likelihood": value}
        for about, value in found
    ]


SETTINGS = {
    "model": "m",
    "checkpoint": "abc",
    "texts": "def",
    "unk": None,
    "seed": 0,
    "lm_latent_eval": "0",
    "num_samples": 100,
    "replicate": 10,
    "temperatures": [1.0, 2.0],
    "others": ["nonpeeking"],
}


CLAIMS = {
    "they hold": (
        {
            ("peeking", 1.0): [90, 60, 50],
            ("peeking", 2.0): [95, 61, 45],
            ("nonpeeking", 1.0): [99, 80, 70],
        },
        {1: 80.0, 100: 55.0},
        (
            "all 3 curves of the first k samples do",
            "3 of 3 times; the corpus level is 2 to 2 times",
            "τ = 2 is best (45), τ = 1 gives 50",
            "yes (peeking 50; nonpeeking 70)",
            "k = 100 gives 55, 100 samples 50 (the beam loses "
            f"{10 * math.log(55 / 50):.3g} nats",
        ),
    ),
    "they fail": (
        {
            ("peeking", 1.0): [90, 60, 66],
            ("peeking", 2.0): [95, 61, math.inf],
            ("nonpeeking", 1.0): [99, 80, 40],
        },
        {100: 33.0},
        (
            "2 of 3 curves of the first k samples do, at every step (the largest "
            "rise: 10 %, m, peeking",
            "2 of 2 times",
            "τ = 1 is best (66)",
            "no (peeking 66; nonpeeking 40)",
            "the beam gains",
        ),
    ),
    "one curve": (
        {("peeking", 1.0): [90, 60, 50]},
        {},
        ("all 1 curves", "1 of 1 times", *["m, peeking: not tested."] * 3),
    ),
    "nothing but infinities": (
        dict.fromkeys([("peeking", 1.0), ("nonpeeking", 1.0)], [math.inf] * 3),
        {10: math.inf},
        (*["not tested"] * 3, "no (peeking inf; nonpeeking inf)", "k = 10 gives inf"),
    ),
}


def test_peeking_is_judged_by_the_proposal_that_peeks():
    settings = {**SETTINGS, "others": ["peeking", "nonpeeking"]}
    curves = {"adapted": [9, 8, 3], "peeking": [90, 60, 50], "nonpeeking": [9, 8, 7]}
    of_settings = rows({(name, 1.0): v for name, v in curves.items()}, {})
    *_, peeking, _ = claims([StudyColumn(settings, of_settings, "adapted")])
    assert peeking.endswith("m, adapted: no (peeking 50; nonpeeking 7).")


@pytest.mark.parametrize("case", CLAIMS)
def test_claims_say_what_decides_them(case):
    curves, beams, expected = CLAIMS[case]
    column = StudyColumn(SETTINGS, rows(curves, beams), "peeking")
    found = [*claims([column])]
    for claim, said in zip(found, expected, strict=True):
        assert said in claim
    assert [*claims([column, column])][:2] == found[:2], "shared curves count once"
    endless = any(math.inf in values for values in curves.values())
    assert ("∞" in as_markdown([column])) is endless
    assert all("not tested" in claim for claim in claims([]))


def test_rows_of_something_else_are_refused(tmp_path):
    head = '{"estimator": "is", "perplexity": 3'
    for line in ("[1]", "[" * 100_000, head + "}", head + "0" * 400 + "}"):
        (tmp_path / "rows.jsonl").write_text(line, encoding="utf-8")
        with pytest.raises(ValueError, match="not a file of a study's rows"):
            read(tmp_path / "rows.jsonl")


MISTAKES = {
    "": "needs --pretrained and --data",
    "--report nowhere": "no study is there",
    "--pretrained {lstm} --data {data}": "lstm has no latents",
    "--pretrained {lstm} --data {data} --limit 0": "limit=0: expected a whole number",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_refused_at_once(lstm_directory, tmp_path, capsys, command):
    data, output = tmp_path / "texts.txt", tmp_path / "out"
    data.write_text("the fox .\n", encoding="utf-8")
    given = command.format(lstm=lstm_directory, data=data).split()
    assert main(["study", "--output", str(output), *given]) == 2
    assert MISTAKES[command] in capsys.readouterr().err
    assert not output.exists()


def test_studies_under_way_are_reported_as_far_as_they_are(
    folder, svg_alone, tmp_path, capsys
):
    part, command = tmp_path, ["study", "--report", str(tmp_path)]
    command += ["--output", str(tmp_path)]
    shutil.copy(folder / "out" / "settings.json", part)
    lines = (folder / "out" / "rows.jsonl").read_text("utf-8").splitlines(True)
    (part / "rows.jsonl").write_text("".join(lines[:12]), encoding="utf-8")
    assert main(command) == 0
    assert "| τ = 0.9 |" in capsys.readouterr().out
    (part / "rows.jsonl").unlink()
    assert main(command) == 2
    assert "no setting of these studies is done" in capsys.readouterr().err
    (part / "settings.json").write_text('{"checkpoint": "a"}')
    assert main(command) == 2
    assert "of no study: its settings lack model" in capsys.readouterr().err
