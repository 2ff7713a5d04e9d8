"""``latent_cot`` in lm-eval: stock tasks, records, thoughts that are kept, refusals."""

import json
import math
from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.ledger.journal import UNFINISHED
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.export.statement import Statement
from lm_latent_eval.report.thoughts import ChoiceQuestions, text, thought_files
from lm_latent_eval.scoring import records
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from lm_latent_eval.wrappers.cot.thinking import Thinker
from tests.harness.test_contract import cot
from tests.stock_tasks import STOCK, evaluated, write_arc
from tests.tiny_checkpoint import conditional
from tests.wrappers.cot import tiny

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


def test_stock_multiple_choice_is_what_the_scorer_says(evaluate, tmp_path, capsys):
    results = evaluate()
    [path] = (tmp_path / "out").rglob("thoughts_*.parquet")
    [kept] = thought_files(path)
    [path] = (tmp_path / "out").rglob("record_*.parquet")
    [record] = records.read(path)
    # The rows of the record are the estimates of the thoughts that lie beside it.
    said = {(a.index, a.option): a.estimate.log_evidence for a in record.answers}
    for question in kept.questions:
        log_p = question.thoughts.log_weights.logsumexp(-1) - math.log(40)
        for option, value in enumerate(log_p.tolist()):
            assert said[question.document, option] == pytest.approx(value, rel=1e-12)
    # One question's thoughts serve its three answers.
    assert len(kept.questions) == len(ASKED)
    assert {answer.stream for answer in record.answers} == {
        f"arc_easy/{n}" for n in range(len(ASKED))
    }
    # What is right is what the task says.
    assert [q.right.index(1) for q in kept.questions] == [0, 1, 2, 0, 1]
    accuracy = results["results"]["arc_easy"]["acc,none"]
    [*_, all_of_them] = ChoiceQuestions.of(kept).curve()
    assert all_of_them.accuracy == pytest.approx(accuracy)
    ours = results["config"]["latent_eval"]
    thoughts = ours["thoughts"]
    assert thoughts["questions"] == len(ASKED) and thoughts["drawn"] == 200
    shares = [thoughts.get(f"share_{e}", 0) for e in ("closed", "truncated", "ended")]
    assert sum(shares) == pytest.approx(1)
    assert ours["model_temperature"] == 1 and ours["close"] == "forced"
    # Commands read it.
    assert "estimator=is, num_samples=40, proposal=prior" in Statement.of(record).note
    path = saved(results, tmp_path / "out")
    assert "200 about 5 questions, shared by the answers" in " ".join(
        explain(path).split()
    )
    assert "5 questions, 40 thoughts each, latent_cot" in text(kept)
    for score, share in ((0.0, "0.0%"), (1.0, "100.0%")):
        alike = [replace(q, right=(score,) * 3) for q in kept.questions]
        assert f"accuracy: {share} of 5" in text(replace(kept, questions=alike))
    first, *others = kept.questions
    silent = torch.full_like(first.thoughts.log_p_answers, -torch.inf)
    first = replace(first, thoughts=replace(first.thoughts, log_p_answers=silent))
    said = text(replace(kept, questions=[first, *others]))
    assert "no thought has an answer: 1" in said and "of 4 questions" in said
    assert main(["thoughts", str(tmp_path / "out"), "--format", "csv"]) in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"40,{all_of_them.accuracy:.1f}"), lines


@pytest.mark.parametrize("proposal", ["hinted", "prior"])
def test_other_answers_are_scored_from_the_file(
    evaluate, directory, tmp_path, capsys, monkeypatch, caplog, proposal
):
    evaluate(proposal=proposal)
    caplog.clear()
    [path] = (tmp_path / "out").rglob("thoughts_*.parquet")
    [kept] = thought_files(path)
    wanted = {
        q.document: q.thoughts.log_weights.logsumexp(-1) - math.log(40)
        for q in kept.questions
    }
    answers = tmp_path / "answers.jsonl"
    lines = [{"document": n, "answers": [" c", " a"]} for n in (3, 1)]
    answers.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(Thinker, "draw", lambda *_: pytest.fail("drew"))
    command = ["thoughts", str(path), "--answers", str(answers), "--model"]
    main([*command, directory, "--format", "csv", "--device", "cpu"])
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    found = {(int(n), a): float(log_p) for n, a, log_p, *_ in rows}
    for n in (3, 1):
        assert found[n, " c"] == pytest.approx(wanted[n][2].item(), rel=1e-9)
        assert found[n, " a"] == pytest.approx(wanted[n][0].item(), rel=1e-9)
    assert "no effect" not in caplog.text


def test_a_cache_loses_no_question(evaluate, tmp_path, refused):
    twice = [*ASKED, ASKED[1], ("c c a", "A")]
    write_arc((question, CHOICES, right) for question, right in twice)
    cache = str(tmp_path / "cache")
    ours = evaluate(use_cache=cache)["config"]["latent_eval"]["thoughts"]
    assert (ours["questions"], ours["drawn"]) == (len(twice), 40 * len(ASKED))
    assert ours["questions_decided"] + ours["questions_undecided"] == len(twice)
    [path] = (tmp_path / "out").rglob("thoughts_*.parquet")
    [kept] = thought_files(path)
    found = {question.document: question for question in kept.questions}
    assert [found[n].right.index(1) for n in (1, 5, 6)] == [1, 1, 0]
    assert found[6].thoughts.log_p.equal(found[1].thoughts.log_p)
    again = evaluate(use_cache=cache)
    assert "thoughts" not in again["config"]["latent_eval"]
    [record, _] = sorted((tmp_path / "out").rglob("record_*.parquet"))
    results = record.with_name("results_2026.json")
    results.write_text(json.dumps({"config": again["config"]}, default=str))
    assert "all came from a cache" in refused("thoughts", results.parent)


class KilledError(Exception):
    pass


def test_a_killed_run_leaves_what_it_has_and_other_runs_leave_it_alone(
    evaluate, tmp_path, monkeypatch, capsys
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
    main(["thoughts", str(tmp_path / "out")])
    assert ", 40 thoughts each, latent_cot, not finished" in capsys.readouterr().out
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
