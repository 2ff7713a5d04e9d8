"""A whole study in miniature: figures, tables, and what an interruption costs."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.columns import ScoresFolder
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.language import load_tokenizer
from lm_latent_eval.distortion.report.study import write_report
from lm_latent_eval.distortion.study.plan import DistortionPlan, Layout, Learners
from lm_latent_eval.distortion.study.run import DistortionStudy
from lm_latent_eval.ledger.files import read
from lm_latent_eval.text.corpora import read_texts

pytestmark = pytest.mark.nightly

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)  # threads of a job: models are tiny
        assert main(["distort", "study", *arguments, "--jobs", "1"]) == 0
    return folder


def test_columns_are_of_the_models(study):
    plan, layout = DistortionPlan.read(MINI), Layout(study)
    for learner in Learners(plan).all:
        scores = ScoresFolder.open(layout.scores(learner, "test"))
        assert len(scores.columns()) == plan.num_test
        digest = scores.settings["learner"]["digest"]
        history = layout.learner(learner) / "history.jsonl"
        epochs = plan.iterations if learner.online else plan.epochs
        assert len(history.read_text().splitlines()) == epochs
        text = ScoresFolder.open(layout.scores(learner, "text"))
        assert text.settings["learner"]["digest"] == digest
    mapped = Learners(plan).mapped
    assert mapped.online
    rows = ScoresFolder.open(layout.scores(mapped, "perturbed")).columns()
    assert len(rows) == plan.num_perturbed * (plan.num_edits + 1)


def test_models_are_what_their_names_say(study):
    plan, layout = DistortionPlan.read(MINI), Layout(study)
    digest = {
        path.name: language_settings(path) for path in (study / "languages").iterdir()
    }
    assert len({*digest.values()}) == len(digest) == 5
    seeds = set()
    for learner in Learners(plan).all:
        settings = read(layout.learner(learner), "training")
        corpus = settings["data"]["corpus"]
        assert corpus["language"]["temperature"] == learner.temperature
        assert corpus["language"]["digest"] == digest[learner.language]
        assert settings["data"].get("fresh") == (
            plan.num_fresh if learner.online else None
        )
        start = settings["start"]
        assert start.get("init") == (
            digest[f"pretrained-{learner.size}"] if learner.pretrained else None
        )
        seeds.add((learner.language, learner.temperature, corpus["seed"]))
    assert len({seed for _, _, seed in seeds}) == len(seeds) == 3
    finetuned = read(layout.language("finetuned"), "training")
    assert finetuned["start"]["init"] == digest["pretrained-medium"]
    base, other = (
        read(layout.language(n), "training") for n in ("base", "pretrained-medium")
    )
    assert finetuned["data"] == base["data"] != other["data"]


def language_settings(directory: Path) -> str:
    language = CausalLanguage.load(directory, begin_id=0, end_id=1, device="cpu")
    return language.settings()["digest"]


def test_tables_are_of_the_right_columns(study):
    plan, layout = DistortionPlan.read(MINI), Layout(study)
    learners = Learners(plan)
    tables = (study / "report" / "tables.md").read_text()
    perplexities = tables[tables.index("## Perplexities") :].split("\n\n")[1]
    assert len(perplexities.splitlines()) == 2 + len(learners.all)
    held_out = read_texts(layout.text("language") / "test.txt")
    fixed = learners.fixed[0]
    text = ScoresFolder.open(layout.scores(fixed, "text"))
    tokenizer = load_tokenizer(layout.tokenizer)
    lengths = [
        min(plan.max_length, 1 + len(tokenizer.encode(t, add_special_tokens=False)))
        for t in held_out
    ]
    assert text.columns().num_tokens.tolist() == lengths
    test = ScoresFolder.open(layout.scores(fixed, "test")).columns()
    row = next(
        line for line in tables.splitlines() if line.startswith("| LSTM | base |")
    )
    cells = row.split(" | ")
    for place, found in ((3, test), (6, text.columns())):
        nats = -found.model_log_p.sum() / found.num_tokens.sum()
        assert cells[place] == f"{nats.exp().item():.4g}"
    mapped = ScoresFolder.open(layout.scores(learners.mapped, "perturbed")).columns()
    last = mapped[mapped.edits == plan.num_edits]
    mean = (last.model_log_p - last.true_log_p).mean().item()
    number = str(plan.num_perturbed)
    assert [f"| {plan.num_edits}", number, number, f"{mean:.4g}"] in [
        line.split(" | ")[:4] for line in tables.splitlines()
    ]


def test_a_report_runs_no_model(study, tmp_path):
    before = (study / "report" / "tables.md").read_text()
    for heading in ("## Claims", "table 4", "figure 13", "## A latent model"):
        assert heading in before
    for claim in ("(i)", "(ii)", "(iii)", "(iv)", "(v)"):
        assert f"- {claim} " in before
    copy = tmp_path / "copy"
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    assert write_report(copy, tmp_path / "report") == before
    for figure in FIGURES:
        name = f"figure_{figure}.svg"
        again = (tmp_path / "report" / name).read_bytes()
        assert len(again) > 2000, name
        assert again == (study / "report" / name).read_bytes()


def test_a_failed_step_ends_those_that_run_beside_it(tmp_path):
    study = DistortionStudy(DistortionPlan.read(MINI), tmp_path, jobs=2, quiet=True)
    since = time.monotonic()
    with pytest.raises(ValueError, match="invalid literal for int"):
        study._run([[("asleep", partial(time.sleep, 300)), ("no", partial(int, "x"))]])
    assert time.monotonic() - since < 100


def test_another_plan_is_refused(study, text):
    plan = DistortionPlan.read("small")
    with pytest.raises(ValueError, match="is of another study of distortion"):
        DistortionStudy(plan, study, text, quiet=True).run()
    other = replace(plan, latent=replace(plan.latent, language="agreemnt"))
    with pytest.raises(ValueError, match="agreemnt"):
        DistortionStudy(other, study / "new", text).run()
    assert not (study / "new").exists()
    with pytest.raises(ValueError, match="jobs=0: expected a whole number"):
        DistortionStudy(DistortionPlan.read(MINI), study, text, jobs=0).run()
    with pytest.raises(ValueError, match="is missing: no study"):
        write_report(study / "text", study / "report")
