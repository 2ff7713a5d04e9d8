"""Runs in which a text has no number: the rest is written and printed, then they fail.

"saw" is what nothing is found of, see ``tests/missing_support.py``.
"""

from __future__ import annotations

import json
import math

import lm_eval
import pytest
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.report import results
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.export.statement import Statement
from tests.conftest import PROJECT
from tests.harness.test_processes import FUNCTIONS, TASK
from tests.missing_support import miss
from tests.tiny_checkpoint import rolling

TEXTS = "the fox\nAda saw the fox\na zebra\nBo\n"
STOCK = """task: stock_rates
dataset_path: text
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
"""


@pytest.fixture
def run(tiny_spelled, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    miss(monkeypatch)
    (tmp_path / "text.txt").write_text(TEXTS)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny_questions.yaml").write_text(TASK)
    (tmp_path / "tasks" / "functions.py").write_text(FUNCTIONS)
    stock = STOCK.format(file=tmp_path / "text.txt")
    (tmp_path / "tasks" / "stock.yaml").write_text(stock)

    def evaluate(tasks, use_cache=None):
        manager = TaskManager(
            include_path=[str(PROJECT / "tasks"), str(tmp_path / "tasks")],
            include_defaults=False,
            metadata={"text_file": str(tmp_path / "text.txt")},
        )
        output = str(tmp_path / "out")
        return lm_eval.simple_evaluate(
            model=LatentKGLM(pretrained=tiny_spelled, num_samples=9, estimator="is"),
            model_args="pretrained=tiny",
            tasks=tasks,
            task_manager=manager,
            bootstrap_iters=0,
            use_cache=use_cache,
            log_samples=True,
            evaluation_tracker=EvaluationTracker(output_path=output),
        )

    return evaluate


def test_results_samples_and_records_of_the_others_are_kept(run, tmp_path, capsys):
    said = r"latent_perplexity/1 \('Ada saw.*stock_rates/1 \(6 of 8 texts are scored"
    with pytest.raises(MissedSupportError, match=said):
        run(["latent_perplexity", "stock_rates"])
    folder = tmp_path / "out" / "tiny"
    [path] = folder.glob("results_*.json")
    content = json.loads(path.read_text())
    found = content["results"]["latent_perplexity"]
    assert found["token_perplexity,none"].endswith("(3 of 4 texts)")
    stock = content["results"]["stock_rates"]["word_perplexity,none"]
    assert stock == "refused: 1 texts without a number"
    said = content["config"]["latent_eval"]["texts_without_number"]
    assert said == {
        "latent_perplexity": ["latent_perplexity/1"],
        "stock_rates": ["stock_rates/1"],
    }
    assert found["texts_without_monte_carlo_error,none"] == "3 (3 of 4 texts)"
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
        Statement.of(record)


def test_documents_without_a_half_are_left_out_of_their_quotient(run, tmp_path):
    named = r"/[23] \('Ada saw.*Likewise latent_document_completion/[23] \(4 of 6 texts"
    with pytest.raises(MissedSupportError, match=named) as raised:
        run(["latent_document_completion"])
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


def test_a_cache_keeps_the_reason(run, tmp_path):
    for _ in range(2):
        with pytest.raises(MissedSupportError, match=r"latent_perplexity/1 \('Ada saw"):
            run(["latent_perplexity"], use_cache=str(tmp_path / "cache" / "answers"))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_option_without_a_number_is_not_chosen(run, tmp_path):
    with pytest.raises(MissedSupportError, match="tiny_questions"):
        run(["tiny_questions"])
    [log] = (tmp_path / "out" / "tiny").glob("samples_tiny_questions_*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    scores = [[float(option[0][0]) for option in line["resps"]] for line in lines]
    missed = [n for n, row in enumerate(scores) if -math.inf in row]
    assert missed, "premise"
    assert len(missed) < len(lines), "premise"
    [record] = results.read(tmp_path / "out")
    kept = {answer.index for answer in record.answers}
    assert kept == {n for n in range(len(lines)) if n not in missed}


def test_without_tasks_the_backend_fails_itself(tiny_spelled, monkeypatch):
    miss(monkeypatch)
    lm = LatentKGLM(pretrained=tiny_spelled, num_samples=9, estimator="is")
    with pytest.raises(MissedSupportError, match=r"task/1 \('Bo saw'\)"):
        lm.loglikelihood_rolling(rolling("Ada", "Bo saw"))
