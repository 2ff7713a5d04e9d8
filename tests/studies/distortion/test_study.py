"""A whole study in miniature: figures, tables, and what an interruption costs."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.columns import Scores
from lm_latent_eval.report.distortion.study import report
from lm_latent_eval.studies.distortion.layout import Layout, Learners
from lm_latent_eval.studies.distortion.plan import Plan
from lm_latent_eval.studies.distortion.run import LOCK_FILE, Study

MINI = Path(__file__).with_name("mini.json")
PHRASES = ["the plum", "a river", "she sold", "his house", "we know", "by day"]
FIGURES = [*range(1, 14), "latent"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    chosen = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    texts = [
        " ".join(chosen.choices(PHRASES, k=chosen.randint(1, 3))) for _ in range(400)
    ]
    path.write_text("\n".join(texts) + "\n")
    return path


@pytest.fixture(scope="module")
def study(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "mini"
    arguments = ["--plan", str(MINI), "--text", str(text), "--output", str(folder)]
    assert main(["distort", "study", *arguments, "--jobs", "1"]) == 0
    return folder


def test_every_figure_and_table(study):
    folder = study / "report"
    for figure in FIGURES:
        for ending in ("png", "svg"):
            path = folder / f"figure_{figure}.{ending}"
            assert path.stat().st_size > 2000, path
    tables = (folder / "tables.md").read_text()
    for heading in ("## Claims", "table 4", "figure 13", "## A latent model"):
        assert heading in tables
    for claim in ("(i)", "(ii)", "(iii)", "(iv)", "(v)"):
        assert f"- {claim} " in tables
    learners = Learners(Plan.read(MINI))
    perplexities = tables[tables.index("## Perplexities") :].split("\n\n")[1]
    assert len(perplexities.splitlines()) == 2 + len(learners.all)


def test_columns_are_of_the_models(study):
    plan, layout = Plan.read(MINI), Layout(study)
    for learner in Learners(plan).all:
        scores = Scores.open(layout.scores(learner, "test"))
        assert len(scores.columns()) == plan.num_test
        digest = scores.settings["learner"]["digest"]
        history = layout.learner(learner) / "history.jsonl"
        epochs = plan.iterations if learner.online else plan.epochs
        assert len(history.read_text().splitlines()) == epochs
        text = Scores.open(layout.scores(learner, "text"))
        assert text.settings["learner"]["digest"] == digest
    (mapped,) = Learners(plan).mapped
    rows = Scores.open(layout.scores(mapped, "perturbed")).columns()
    assert len(rows) == plan.num_perturbed * (plan.num_edits + 1)


def test_a_report_runs_no_model(study, tmp_path):
    before = (study / "report" / "tables.md").read_text()
    copy = tmp_path / "copy"
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    assert report(copy, tmp_path / "report") == before
    for figure in FIGURES:
        name = f"figure_{figure}.svg"
        again = (tmp_path / "report" / name).read_bytes()
        assert again == (study / "report" / name).read_bytes()


def test_an_interrupted_study_goes_on_wherever_it_is(study, text, tmp_path):
    plan, copy = Plan.read(MINI), tmp_path / "copy"
    shutil.copytree(study, copy)
    layout, learners = Layout(copy), Learners(plan)
    learner = learners.fixed[0]
    lost = (layout.scores(learner, "test"), layout.learner(learner))
    for path in lost:
        shutil.rmtree(path)
    kept = layout.learner(learners.fixed[1]) / "model.safetensors"
    since = kept.stat().st_mtime_ns
    Study(plan, copy, text, quiet=True).run()
    assert kept.stat().st_mtime_ns == since
    for path in lost:
        files = [each for each in path.rglob("*.arrow") if each.is_file()]
        assert files
        for file in files:
            original = study / file.relative_to(copy)
            assert file.read_bytes() == original.read_bytes()


def test_another_plan_or_writer_is_refused(study, text):
    from filelock import FileLock

    plan = Plan.read("small")
    with pytest.raises(ValueError, match="is of another study of distortion"):
        Study(plan, study, text, quiet=True).run()
    with (
        FileLock(study / LOCK_FILE),
        pytest.raises(ValueError, match="another run is writing into"),
    ):
        Study(Plan.read(MINI), study, text, quiet=True).run()
    with pytest.raises(ValueError, match="jobs=0: expected at least 1"):
        Study(Plan.read(MINI), study, text, jobs=0).run()
    with pytest.raises(ValueError, match="is not the settings of a study"):
        report(study / "text", study / "report")
