"""Records beside the results: of every run, of ties, and of texts without a number.

Questions whose options differ by rounding alone are ties in every batch. Of a run in
which a text has no number, the rest is written and printed, then it fails; "saw" is
what nothing is found of (``tests/missing_support.py``).
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from lm_eval.utils import make_table

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.harness import running
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.perplexity import PerplexityTask
from lm_latent_eval.report import results
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.export.statement import Statement, command
from lm_latent_eval.report.numbers import numbers
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.metrics import METRICS
from tests.conftest import PROJECT
from tests.harness.test_cot import saved
from tests.harness.test_processes import write_tasks
from tests.missing_support import miss
from tests.stock_tasks import evaluated, write_pages

TEXTS = "Ada saw the fox\nthe fox saw Bo.\na zebra\n"
TASKS = ["latent_perplexity", "tiny_questions"]


def recorded(lm, tasks, folder, out, use_cache=None, **options):
    """Evaluate tasks on the folder's text and the questions beside it."""
    return evaluated(
        lm,
        tasks,
        [str(PROJECT / "tasks"), str(folder / "tasks")],
        out=out,
        metadata={"text_file": str(folder / "text.txt")},
        use_cache=use_cache,
        **options,
    )


@pytest.fixture
def run(spelled_directory, tmp_path):
    """Return a function that runs both tasks, or some, and returns the results."""
    write_tasks(tmp_path, TEXTS)

    def run(output, use_cache=None, before=lambda lm: None, tasks=TASKS, **settings):
        lm = LatentKGLM(pretrained=spelled_directory, num_samples=20, **settings)
        before(lm)
        return recorded(lm, tasks, tmp_path, output, use_cache)

    return run


def written(results, folder):
    names = results["config"]["latent_eval"]["records"]
    return {task: records.read(Path(folder) / name)[0] for task, name in names.items()}


def test_a_record_gives_the_results_again_and_a_cache_the_record(run, tmp_path):
    cache = str(tmp_path / "cache")
    results = run(str(tmp_path / "out"), use_cache=cache, log_weights="true")
    found = written(results, tmp_path / "out" / "tiny")
    assert sorted(found) == TASKS
    texts = found["latent_perplexity"]
    printed = results["results"]["latent_perplexity"]
    rows = {name for name in printed if name.endswith(",none")}
    names = {f"{name}_stderr,none" for name in PerplexityTask.listed} | {
        f"{n},none" for n in PerplexityTask.listed
    }
    assert rows <= names, "the five that most readers need"
    for name in PerplexityTask.listed:
        assert printed[f"{name},none"] == METRICS[name](texts.answers)
    assert [answer.index for answer in texts.answers] == [0, 1, 2]
    assert texts.settings["seed"] == 0
    assert texts.settings["checkpoint"] == results["config"]["checkpoint_digest"]
    again = run(str(tmp_path / "b"), use_cache=cache, log_weights="true")
    assert again["config"]["latent_eval"]["requests"] == 0, "premise"
    assert written(again, tmp_path / "b" / "tiny") == found
    questions = found["tiny_questions"].answers
    assert [(answer.index, answer.option) for answer in questions] == [
        (document, option) for document in range(5) for option in range(3)
    ]
    accuracy = sum(answer.accuracy for answer in questions) / 15
    assert accuracy == results["results"]["tiny_questions"]["acc,none"]
    samples = results["samples"]["latent_perplexity"]
    assert json.loads(json.dumps(samples))[0]["token_perplexity"][1] == 5
    rows = [line.split("|") for line in make_table(results).splitlines()[2:]]
    shown = {row[5].strip(): row[9].strip() for row in rows if len(row) > 9}
    assert not [name for name in shown if name.endswith("_stderr")], "beside the metric"
    numbers_of = results["results"]["latent_perplexity"]
    assert not [name for name in numbers_of if "_stderr_stderr" in name]
    stderr = numbers_of["token_perplexity_stderr,none"]
    assert float(shown["token_perplexity"]) == round(stderr, 4) > 0
    assert shown["corpus_token_perplexity"] == "N/A"


def test_a_command_names_the_documents_and_the_chat_template(
    spelled_directory, tmp_path, monkeypatch
):
    """lm-eval keeps neither."""
    lm = LatentKGLM(pretrained=spelled_directory, num_samples=5)
    monkeypatch.setattr(lm, "chat_template", lambda name: "{{ messages }}")
    monkeypatch.setattr(lm, "apply_chat_template", lambda said, **how: "Ada")
    write_tasks(tmp_path, TEXTS)
    # Documents that are not 0 .. n - 1 are an IndexError of lm-eval 0.5.0.dev1's own.
    options = {"samples": {"latent_perplexity": [0, 1]}, "apply_chat_template": "tool"}
    found = recorded(lm, TASKS[:1], tmp_path, str(tmp_path / "out"), **options)
    [record] = results.read(saved(found, tmp_path / "out"))
    assert len(record.answers) == 2, "premise"
    said = command(record.task, record.settings)
    assert "--apply_chat_template tool" in said
    assert """--samples '{"latent_perplexity": [0, 1]}'""" in said
    assert "--seed" not in said and "--num_fewshot" not in said


def test_a_model_evaluated_twice_writes_records_of_each_run(
    spelled_directory, tmp_path
):
    lm, found = LatentKGLM(pretrained=spelled_directory, num_samples=5), []
    for name, texts in (("a", TEXTS), ("b", "the fox saw Ada\n")):
        (tmp_path / name).mkdir()
        write_tasks(tmp_path / name, texts)
        out = str(tmp_path / name / "out")
        results = recorded(lm, TASKS[:1], tmp_path / name, out)
        [record] = written(results, tmp_path / name / "out" / "tiny").values()
        requests = results["config"]["latent_eval"]["requests"]
        found.append(([a.index for a in record.answers], requests))
    assert found == [([0, 1, 2], 3), ([0], 1)]


def test_a_cache_answers_equal_texts_alike_from_the_first_run_on(run, tmp_path):
    """It knows them by their strings alone."""
    (tmp_path / "text.txt").write_text("Ada saw the fox\nthe fox\nAda saw the fox\n")
    how = {"tasks": TASKS[:1], "estimator": "is", "use_cache": str(tmp_path / "cache")}
    found = [run(str(tmp_path / out), **how) for out in "ab"]
    one, other = (each["results"]["latent_perplexity"] for each in found)
    assert one["token_perplexity,none"] == other["token_perplexity,none"]
    assert one["certified_token_perplexity,none"] > one["token_perplexity,none"]


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(TASKS, id="same"),
        pytest.param(TASKS[1:], id="other", marks=pytest.mark.nightly),
    ],
)
def test_a_second_run_does_not_stop_the_first(run, tmp_path, caplog, tasks):
    """It gets as far as the questions while the first one is answering them."""
    out, folder, second = str(tmp_path / "out"), tmp_path / "out" / "tiny", []

    def meet_at_the_first_question(lm):
        score = lm._scorer.score_continuations

        def met(queries):
            for number, answer in enumerate(score(queries)):
                yield answer
                if number == 0:
                    second.append(run(out, tasks=TASKS))
                    assert [*folder.glob(f"*continuations*{records.UNFINISHED}")]

        lm._scorer.score_continuations = met

    first = run(out, before=meet_at_the_first_question, tasks=tasks)
    assert not list(folder.glob(f"*{records.UNFINISHED}"))
    assert caplog.text.count("another run is writing into") == (tasks == TASKS)
    found, expected = written(first, folder), written(second[0], folder)
    assert found == {task: expected[task] for task in tasks}


def test_runs_over_other_documents_have_other_files(monkeypatch):
    """By whatever name: a file that was edited is another one."""

    def named(documents, metadata):
        task = SimpleNamespace(task_name="t", eval_docs=documents)
        asked = {"loaded": {"tasks": {"t": task}}, "metadata": metadata}
        monkeypatch.setattr(running, "evaluation", lambda: asked)
        return running.run_digest({"seed": 0})

    one, other = [{"text": "a"}, {"text": "b"}], [{"text": "a"}, {"text": "c"}]
    found = {
        named(documents, {"text_file": f}) for documents in (one, other) for f in "AB"
    }
    assert len(found) == 4 and named(one, {"text_file": "A"}) in found


# The model knows neither zebra nor yak, and an unknown word is a class of its own.
TIED = [
    {"context": "Ada saw", "choices": choices, "answer": answer}
    for answer in (0, 1)
    for choices in ([" the zebra", " the yak"], [" the fox", " zebra fox zebra"])
]


@pytest.fixture
def moved(kglm_directory, tmp_path):
    write_tasks(tmp_path, "", TIED)

    def evaluate(nats):
        """Add so many to the first option's score."""
        lm = LatentKGLM(pretrained=kglm_directory, num_samples=9, unk="closed")
        score = lm._scorer.score_continuations

        def rounded(queries):
            for answer in score(queries):
                more = nats * (1 - answer.index % 2)
                moved = answer.estimate.log_evidence + more
                estimate = replace(answer.estimate, log_evidence=moved)
                yield replace(answer, estimate=estimate)

        lm._scorer.score_continuations = rounded
        output = tmp_path / f"out{nats}"
        return recorded(lm, ["tiny_questions"], tmp_path, output), output

    return evaluate


@pytest.mark.parametrize("nats", [1e-13, -1e-6, -1e-3])
def test_rounding_decides_nothing(moved, nats, caplog):
    found, output = moved(nats)
    said = found["config"]["latent_eval"]
    if nats == -1e-3:  # a difference that is one
        assert said["questions_tied"] == 0
        assert "questions tie" not in caplog.text
        return
    assert "2 of 4 questions tie: rounding alone chooses" in caplog.text
    assert (said["questions"], said["questions_tied"]) == (4, 2)
    assert found["results"]["tiny_questions"]["acc,none"] == 0.5, "either way"
    [path] = output.rglob("record_*.parquet")
    [record] = results.read(path)
    tied = [answer.tied for answer in record.answers]
    assert tied == [True, True, False, False] * 2
    accuracies = [answer.accuracy for answer in record.answers[::2]]
    assert accuracies == [0.5, 1.0, 0.5, 0.0]
    assert numbers(Run.of(record))["questions_tied"].value == 2
    assert "questions_tied = 2" in explain(path)


MISSED_TEXTS = "the fox\nAda saw the fox\na zebra\nBo\n"


@pytest.fixture
def missing(spelled_directory, stock_data, tmp_path, monkeypatch):
    miss(monkeypatch)
    write_tasks(tmp_path, MISSED_TEXTS)
    write_pages(MISSED_TEXTS.splitlines())

    def evaluate(tasks, use_cache=None):
        lm = LatentKGLM(pretrained=spelled_directory, num_samples=9, estimator="is")
        return recorded(lm, tasks, tmp_path, tmp_path / "out", use_cache)

    return evaluate


def test_results_samples_and_records_of_the_others_are_kept(missing, tmp_path, capsys):
    said = r"latent_perplexity/1 \('Ada saw.*wikitext/1 \(6 of 8 texts are scored"
    with pytest.raises(MissedSupportError, match=said):
        missing(["latent_perplexity", "wikitext"])
    folder = tmp_path / "out" / "tiny"
    [path] = folder.glob("results_*.json")
    content = json.loads(path.read_text())
    found = content["results"]["latent_perplexity"]
    assert found["token_perplexity,none"].endswith("(3 of 4 texts)")
    stock = content["results"]["wikitext"]["word_perplexity,none"]
    assert stock == "refused: 1 texts without a number"
    said = content["config"]["latent_eval"]["texts_without_number"]
    assert said == {
        "latent_perplexity": ["latent_perplexity/1"],
        "wikitext": ["wikitext/1"],
    }
    error = found["token_perplexity_monte_carlo_error,none"]
    assert error == "N/A: 3 of 3 texts (3 of 4 texts)"
    assert "(3 of 4 texts)" in capsys.readouterr().out
    [log] = folder.glob("samples_latent_perplexity_*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["doc_id"] for line in lines] == [0, 1, 2, 3]
    assert [bool(line["token_perplexity"]) for line in lines] == [
        *(True, False, True, True)
    ]
    records = {record.task: record for record in results.read(tmp_path / "out")}
    record = records["latent_perplexity"]
    assert [answer.index for answer in record.answers] == [0, 2, 3]
    assert not record.finished
    [parquet] = folder.glob("record_latent_perplexity_*.parquet")
    for file in (path, parquet):
        assert "No number of latent_perplexity/1" in explain(file)
    with pytest.raises(ValueError, match="no number of 1 texts"):
        Statement.of(Run.of(record))


def test_documents_without_a_half_are_left_out_of_their_quotient(missing, tmp_path):
    named = r"/[23] \('Ada saw.*Likewise latent_document_completion/[23] \(4 of 6 texts"
    with pytest.raises(MissedSupportError, match=named) as raised:
        missing(["latent_document_completion"])
    assert all(str(raised.value).count(f"completion/{n} (") == 1 for n in (2, 3))
    [path] = (tmp_path / "out" / "tiny").glob("results_*.json")
    found = json.loads(path.read_text())["results"]["latent_document_completion"]
    [record] = results.read(tmp_path / "out")
    scored = {answer.index: answer.estimate for answer in record.answers}
    assert scored.keys() == {0, 1, 4, 5}
    nats = [(1 if n % 2 else -1) * e.log_evidence for n, e in scored.items()]
    tokens = sum((1 if n % 2 else -1) * e.num_tokens for n, e in scored.items())
    expected = math.exp(-math.fsum(nats) / tokens)
    shown = found["completion_perplexity,none"]
    assert shown == f"{expected:.4f} (2 of 3 documents)"
    assert found["completed_tokens,none"] == f"{tokens} (2 of 3 documents)"
    [log] = (tmp_path / "out" / "tiny").glob("samples_*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    parts = [line["completion_perplexity"] for line in lines]
    assert parts[2:4] == [["given"], ["whole"]]


def test_a_cache_keeps_the_reason(missing, tmp_path):
    for _ in range(2):
        with pytest.raises(MissedSupportError, match=r"latent_perplexity/1 \('Ada saw"):
            missing(["latent_perplexity"], str(tmp_path / "cache" / "answers"))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_option_without_a_number_is_not_chosen(missing, tmp_path):
    with pytest.raises(MissedSupportError, match="tiny_questions"):
        missing(["tiny_questions"])
    [log] = (tmp_path / "out" / "tiny").glob("samples_tiny_questions_*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    scores = [[float(option[0][0]) for option in line["resps"]] for line in lines]
    missed = [n for n, row in enumerate(scores) if -math.inf in row]
    assert missed, "premise"
    assert len(missed) < len(lines), "premise"
    [record] = results.read(tmp_path / "out")
    kept = {answer.index for answer in record.answers}
    assert kept == {n for n in range(len(lines)) if n not in missed}
