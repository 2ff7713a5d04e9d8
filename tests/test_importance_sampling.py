"""``examples/importance_sampling``: rows against single runs, kept rows, coverage."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from matplotlib.image import imread

from lm_latent_eval import load
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import corpus_perplexity, instance_perplexity
from tests.conftest import PROJECT
from tests.means import normal

SCRIPT = PROJECT / "examples" / "importance_sampling" / "study.py"
KEPT = PROJECT / "docs" / "results" / "study"
TEXTS = ("the fox saw Ada .", "Bo saw the fox .", "the fox .", "Ada saw Bo .", "fox")
ROUNDING = 1e-6
"""Of float32 networks whose batches are cut otherwise."""


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import study

    return study


def test_every_row_is_what_a_run_of_its_own_says(
    study, kglm_directory, tmp_path, monkeypatch
):
    """And a study that is repeated estimates what it lacks."""
    data, output = tmp_path / "texts.txt", tmp_path / "out"
    data.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    given = ["run", "--pretrained", str(kglm_directory), "--data", str(data)]
    given += ["--output", str(output), "--replicate", "4", "--beam-widths", "1", "3"]
    given += ["--temperatures", "1", "2", "--num-samples"]
    study.main([*given, "20"])
    rows, model = study.read_rows(output / "rows.jsonl"), load(kglm_directory)
    _, *others = model.checkpoint.model.proposal_names
    sizes = (1, 2, 4, 5, 10, 20)
    drawn = [row for row in rows if row["estimator"] == "is"]
    assert len(drawn) == (2 + len(others)) * 2 * len(sizes)
    assert sum(row["estimator"] == "beam" for row in rows) == 2
    assert any(row["level"] == "token" for row in rows), "premise: smc takes one"
    for row in rows:
        how = {name: row[name] for name in study.SETTING}
        single = model.log_likelihood(TEXTS, **how)
        tokens = sum(estimate.num_tokens for estimate in single)
        log_p = torch.tensor([e.log_evidence for e in single], dtype=torch.float64)
        expected = instance_perplexity(log_p, tokens)
        if row["level"] == "corpus":
            log_w = [torch.tensor(e.log_weights, dtype=torch.float64) for e in single]
            expected = corpus_perplexity(log_w, tokens)
        assert row["perplexity"] == pytest.approx(expected, rel=ROUNDING), row
        assert row["tokens"] == tokens
    path = output / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    study.main([*given, "20"])
    [*there, again] = path.read_text().splitlines(keepends=True)
    assert there == lines[:-1], "what is there is not estimated again"
    expected = pytest.approx(rows[-1]["perplexity"], rel=ROUNDING)
    assert study.json.loads(again)["perplexity"] == expected
    with pytest.raises(SystemExit, match="has another study"):
        study.main([*given, "30"])
    with pytest.raises(SystemExit, match="at most --num-samples"):
        study.main([*given, "3"])


def test_texts_of_several_sentences_are_refused(study):
    model = load(CHECKPOINT)
    found = model.log_likelihood(["She left the town."] * 2, estimator="is")
    assert study.weights(found).shape == (2, 100)
    both = type(found[0]).product(found)
    with pytest.raises(SystemExit, match="one sentence a line"):
        study.weights([both])


def test_fresh_estimates_are_where_they_are_predicted(study):
    """Of 400 corpora, 95 % have a fresh estimate inside the interval."""
    trials, texts, count, size = 400, 15, 5, 4
    inside = 0
    for log_w in normal(trials, texts, (count + 1) * size, seed=count):
        log_p = study.log_evidence(log_w.unflatten(1, (count + 1, size)))
        ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
        low, high = study.predicted(log_p[:, :-1]).quantile(ends)
        inside += int(low <= log_p[:, -1].sum() <= high)
    error = math.sqrt(0.95 * 0.05 / trials)
    assert abs(inside / trials - 0.95) < 4 * error


def test_infinite_rows_are_read_as_they_were_written(study, tmp_path):
    log_w = normal(11, 60, seed=0)
    log_w[2, :20] = -torch.inf
    rows = [*study.drawn_rows({"tokens": 66}, log_w, 10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(study.json.dumps, rows)))
    read = study.read_rows(tmp_path / "rows.jsonl")
    sizes = {row["num_samples"]: row for row in read if row["level"] == "instance"}
    assert sizes[10]["perplexity"] == math.inf > sizes[50]["perplexity"]
    assert sizes[10]["high"] == "inf" > str(sizes[10]["low"])


# -- the rows that the documentation keeps ---------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    output = tmp_path_factory.mktemp("report")
    studies = [KEPT / name for name in ("rnng", "entitynlm", "kglm")]
    command = [sys.executable, SCRIPT, "report", *studies, "--output", output]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == (output / "tables.txt").read_text().strip()
    return output


def test_the_claims_are_decided_by_the_kept_rows(drawn, study):
    said = (drawn / "tables.txt").read_text(encoding="utf-8")
    for claim in (
        "(a) Estimates fall with K: 30 of 30 curves",
        "lies below corpus level: 30 of 30 times, by factors of 1.01 to 64.6",
        "(c) Raised temperatures are best, entitynlm, peeking: τ = 2 gives 183.02",
        "(d) Peeking beats others, kglm, peeking: τ = 1 6.9729, nonpeeking 43.204",
        "(e) Beams come close to samples, rnng, crf: 100 latents give 107.28",
    ):
        assert claim in said
    others = [KEPT / "adapted" / name for name in ("rnng", "entitynlm", "kglm")]
    again = [*study.claims(study.read_columns(others))]
    assert any("(d)" in claim and "kglm, peeking: τ = 1" in claim for claim in again)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_figures_show_something_and_cut_nothing_off(drawn, number):
    drawn_at = (imread(drawn / f"figure_{number}.png")[..., :3] < 0.99).any(-1)
    assert 0.01 < drawn_at.mean() < 0.6
    edges = drawn_at[0], drawn_at[-1], drawn_at[:, 0], drawn_at[:, -1]
    assert not any(edge.any() for edge in edges)
    assert (drawn / f"figure_{number}.pdf").stat().st_size


@pytest.mark.nightly
def test_the_smallest_real_run(tmp_path):
    data, output = tmp_path / "texts.txt", tmp_path / "out"
    data.write_text("She studied in the town.\nIt has a bridge.\n", encoding="utf-8")
    given = ["run", "--pretrained", CHECKPOINT, "--data", data, "--output", output]
    given += ["--num-samples", "20", "--replicate", "4", "--beam-widths", "10"]
    for command in (given, ["report", output, "--output", output]):
        subprocess.run([sys.executable, SCRIPT, *map(str, command)], check=True)
    said = (output / "tables.txt").read_text(encoding="utf-8")
    assert [said.count(f"({letter})") for letter in "abcde"] == [1] * 5
