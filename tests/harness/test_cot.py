"""``latent_cot`` in lm-eval: stock tasks, records, thoughts that are kept, refusals."""

import json
from functools import partialmethod

import numpy as np
import pytest

from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.ledger.journal import UNFINISHED
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.export.statement import Statement
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import records
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from lm_latent_eval.wrappers.cot.thinking import Thinker
from tests.harness.test_contract import cot
from tests.stock_tasks import STOCK, evaluated, write_arc
from tests.tiny_checkpoint import conditional
from tests.wrappers.cot import tiny
from tests.wrappers.cot.completions_server import serving

ASKED = [("a b", "A"), ("c c a", "B"), ("b", "C"), ("a", "A"), ("c", "B")]
CHOICES = ["a", "b c", "c"]
OPTIONS = {**tiny.MARKS, "max_think_tokens": 4, "num_samples": 40, "close": "forced"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    cot(folder)
    return str(folder)


def backend(directory, **options):
    return LatentCoT(pretrained=directory, device="cpu", **{**OPTIONS, **options})


@pytest.fixture
def evaluate(directory, stock_data, tmp_path):
    write_arc((question, CHOICES, right) for question, right in ASKED)

    def run(limit=None, num_fewshot=0, use_cache=None, **options):
        return evaluated(
            backend(directory, **options),
            ["arc_easy"],
            str(STOCK / "arc"),
            out=tmp_path / "out",
            limit=limit,
            num_fewshot=num_fewshot,
            use_cache=use_cache,
        )

    return run


def saved(results, folder):
    """Write results where the command line writes them."""
    [record] = folder.rglob("record_*.parquet")
    path = record.with_name("results_2026.json")
    kept = {key: results[key] for key in ("config", "results", "configs")}
    path.write_text(json.dumps(kept, default=str))
    return path


def thoughts_in(folder):
    """Return the rows of the file of thoughts, by document."""
    [path] = folder.rglob("thoughts_*.jsonl")
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return {row["document"]: row for row in rows}


def log_p_hat(row):
    """Return log p-hat of each answer, from what the file says of its thoughts."""
    log_p, log_q = (np.array(row[name], dtype=float) for name in ("log_p", "log_q"))
    log_w = log_p - log_q + np.array(row["log_p_answers"], dtype=float)
    return np.log(np.exp(log_w).mean(-1))


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_stock_multiple_choice_is_what_the_scorer_says(evaluate, tmp_path, proposal):
    results = evaluate(proposal=proposal)
    kept = thoughts_in(tmp_path / "out")
    [path] = (tmp_path / "out").rglob("record_*.parquet")
    [record] = records.read(path)
    # The rows of the record are the estimates of the thoughts that lie beside it.
    said = {(a.index, a.option): a.estimate.log_evidence for a in record.answers}
    for document, row in kept.items():
        for option, value in enumerate(log_p_hat(row)):
            assert said[document, option] == pytest.approx(value, rel=1e-12)
        assert len(row["thoughts"]) == len(row["tokens"]) == 40
        assert {*row["endings"]} <= {"closed", "truncated", "ended"}
    # One question's thoughts serve its three answers.
    assert len(kept) == len(ASKED)
    assert {answer.stream for answer in record.answers} == {
        f"arc_easy/{n}" for n in range(len(ASKED))
    }
    # What is right is what the task says.
    assert [kept[n]["right"].index(1) for n in range(5)] == [0, 1, 2, 0, 1]
    right = [row["right"][log_p_hat(row).argmax()] for row in kept.values()]
    accuracy = results["results"]["arc_easy"]["acc,none"]
    assert sum(right) / len(right) == pytest.approx(accuracy)
    ours = results["config"]["latent_eval"]
    thoughts = ours["thoughts"]
    assert thoughts["questions"] == len(ASKED) and thoughts["drawn"] == 200
    shares = [thoughts.get(f"share_{e}", 0) for e in ("closed", "truncated", "ended")]
    assert sum(shares) == pytest.approx(1)
    assert ours["model_temperature"] == 1 and ours["close"] == "forced"
    # Commands read it.
    note = f"estimator=is, num_samples=40, proposal={proposal}"
    assert note in Statement.of(Run.of(record)).note
    path = saved(results, tmp_path / "out")
    said = " ".join(explain(path).split())
    assert "200 about 5 questions, shared by the answers" in said


def test_explain_counts_decided_questions(evaluate, tmp_path):
    results = evaluate(until="decided", num_samples=400)
    thoughts = results["config"]["latent_eval"]["thoughts"]
    decided, undecided = (
        thoughts[f"questions_{name}"] for name in ("decided", "undecided")
    )
    assert decided + undecided == len(ASKED) and decided, "premise: one is certain"
    kept = thoughts_in(tmp_path / "out")
    sizes = [len(row["tokens"]) for row in kept.values()]
    assert undecided == sum(size == 400 for size in sizes)
    together = thoughts["questions_decided_together"]
    assert together <= decided
    path = saved(results, tmp_path / "out")
    said = " ".join(explain(path).split())
    assert f"of {decided} of 5 questions; {undecided} are undecided" in said
    assert (f"wrong on average): {together}." in said) is (together > 0)


def test_explain_says_what_a_servers_draws_would_not_show(evaluate, tmp_path):
    with serving(tiny.network()) as (url, _):
        results = evaluate(base_url=url)
    thoughts = results["config"]["latent_eval"]["thoughts"]
    assert thoughts["draws_checked"] == thoughts["tokens"] > 200
    assert {*thoughts["noticed"].values()} == {True, False}, "premise: few tokens"
    said = " ".join(explain(saved(results, tmp_path / "out")).split())
    assert (
        f"{thoughts['tokens']:,} tokens that the server drew follow the model" in said
    )
    would = said.partition("they would not show ")[2]
    assert "temperature 0.95, " in would and not thoughts["noticed"]["temperature 0.95"]
    assert "temperature 0.3, " not in would and thoughts["noticed"]["temperature 0.3"]


def test_a_cache_loses_no_question(evaluate, tmp_path):
    twice = [*ASKED, ASKED[1], ("c c a", "A")]
    write_arc((question, CHOICES, right) for question, right in twice)
    cache = str(tmp_path / "cache")
    ours = evaluate(use_cache=cache)["config"]["latent_eval"]["thoughts"]
    assert (ours["questions"], ours["drawn"]) == (len(twice), 40 * len(ASKED))
    assert ours["questions_decided"] + ours["questions_undecided"] == len(twice)
    found = thoughts_in(tmp_path / "out")
    assert [found[n]["right"].index(1) for n in (1, 5, 6)] == [1, 1, 0]
    assert found[6]["log_p"] == found[1]["log_p"]
    again = evaluate(use_cache=cache)
    assert "thoughts" not in again["config"]["latent_eval"]


class KilledError(Exception):
    pass


def test_a_killed_run_leaves_what_it_has_and_other_runs_leave_it_alone(
    evaluate, tmp_path, monkeypatch
):
    drawn, draw = [], Thinker.draw

    def counting(thinker, questions, *numbers, most=99):
        if len(drawn) == most:
            raise KilledError
        drawn.extend(question.key for question in questions)
        return draw(thinker, questions, *numbers)

    def unfinished():
        return sorted(path.name for path in (tmp_path / "out").rglob(f"*{UNFINISHED}"))

    monkeypatch.setattr(Thinker, "draw", partialmethod(counting, most=2))
    with pytest.raises(KilledError):
        evaluate(batch_size=1)
    killed, left = {*drawn}, unfinished()
    assert [name.partition("_")[0] for name in left] == ["record", "thoughts"]
    [path] = (tmp_path / "out").rglob(f"record_*{UNFINISHED}")
    [answers] = records.read(path)
    assert (answers.task, answers.finished) == ("arc_easy", False)
    assert len(answers.answers) == len(CHOICES) * len(killed)
    monkeypatch.setattr(Thinker, "draw", counting)
    for others in ({"num_fewshot": 1}, {"limit": 1}):
        drawn.clear()
        evaluate(**others, batch_size=1)
        assert unfinished() == left
    drawn.clear()
    evaluate(batch_size=1)
    assert len(drawn) == len(ASKED) - len(killed) and not killed & {*drawn}
    assert not unfinished()


def test_bad_questions_are_named(directory):
    lm = backend(directory)
    with pytest.raises(ValueError, match=r"task/0.*the answer is empty"):
        lm.loglikelihood(conditional(("a", "")))
    with pytest.raises(ValueError, match=r"reads 32 tokens.*Lower max_think_tokens"):
        lm.loglikelihood(conditional(("a " * 40, " b")))
    never = backend(directory, close="natural", max_think_tokens=1, num_samples=1)
    with pytest.raises(ValueError, match="none of 1 thoughts has an answer after it"):
        never.loglikelihood(conditional(*[(f"a {'b ' * n}", " b") for n in range(9)]))


def test_marks_are_those_of_the_chat_template():
    network = tiny.network()
    with pytest.raises(ValueError, match=r"no chat template says.*give think_start="):
        ThinkingLM(network).scorer({})
    network.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}</think>{% endfor %}"
    )
    scorer = ThinkingLM(network).scorer({})
    assert (scorer.marks.start, scorer.marks.end) == ("<think>", "</think>")
    assert scorer.fingerprint["think_end"] == "</think>"
    # A thought that the template opens is not opened twice.
    marks = tiny.scorer(tiny.network()).marks
    assert marks.prompt("a b <think>") == marks.prompt("a b ")
    assert marks.prompt("a b <think>\n") == marks.prompt("a b ")
    assert marks.hinted("a b <think>", " c") == marks.prompt("c a b ")


def test_a_template_without_a_generation_prompt_is_refused(directory):
    lm = backend(directory)
    chat = [{"role": "user", "content": "a b"}]
    lm._loaded.tokenizer.chat_template = "{{ messages[0].content }}</think>"
    with pytest.raises(ValueError, match="writes no generation prompt"):
        lm.apply_chat_template(chat)
    lm._loaded.tokenizer.chat_template = (
        "{{ messages[0].content }}{% if add_generation_prompt %} c{% endif %}"
    )
    assert lm.apply_chat_template(chat) == "a b c"
