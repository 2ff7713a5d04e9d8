"""A record holds all that a run's numbers are made of."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import Scored
from lm_latent_eval.scoring.records import Record, Row

WEIGHTS = (0.25, 0.75, 0.5)


def row(document=0, weights=WEIGHTS, pilot=0, **more):
    log_w = torch.tensor(weights, dtype=torch.float64).log()
    estimate = Estimate.from_log_weights(log_w, num_tokens=4)
    spent = pilot + len(weights)
    answer = Answer(document, estimate, f"0/{document}", 0, 0, evaluations=spent)
    scored = Scored.of("aé b", answer)
    return Row.of(answer, scored, text=f"{document:x}", document=document, **more)


def test_what_is_written_is_read(tmp_path):
    rows = [row(0), row(1, weights=(0.5,), pilot=7, accuracy=0.5, is_greedy=True)]
    record = Record("a task", {"seed": 3}, rows)
    records.write(record, tmp_path / "r.parquet")
    [again] = records.read(tmp_path / "r.parquet")
    assert (again.task, again.rows) == ("a task", rows)
    assert again.settings["seed"] == 3
    assert again.settings["texts"] == record.texts_digest
    assert rows[1].evaluations == 1 + 7


def test_a_text_s_estimate_follows_from_its_sufficient_terms():
    made = row()
    total, squares = made.log_sum_weights, made.log_sum_squared_weights
    assert made.log_likelihood == pytest.approx(total - math.log(3))
    size = math.exp(2 * total - squares)
    assert made.effective_sample_size == pytest.approx(size)
    assert made.draws_stderr == pytest.approx(math.sqrt(1 / size - 1 / 3))
    assert made.stderr is None, "draws cannot tell what they never visit"
    assert made.scored.estimate.log_weights == made.log_weights
    assert (made.words, made.bytes, made.tokens) == (2, 5, 4)


def test_log_weights_take_a_column_only_where_there_are_some(tmp_path):
    for name, weights in (("with", row().log_weights), ("without", ())):
        path = tmp_path / name
        records.write(
            Record("t", {}, [Row(**{**vars(row()), "log_weights": weights})]), path
        )
        assert ("log_weights" in pq.read_schema(path).names) is bool(weights)
        assert records.read(path)[0].rows[0].log_weights == weights


def test_a_killed_run_leaves_what_it_had(tmp_path):
    path = tmp_path / f"run{records.UNFINISHED}"
    with records.journal(path, {"seed": 3}) as add:
        for task, document in (("b", 1), ("a", 0), ("b", 0)):
            add(task, row(document))
    with path.open("a") as file:
        file.write('{"task": "b", "docu')
    read = records.read(path)
    assert [(r.task, r.finished, r.settings) for r in read] == [
        ("b", False, {"seed": 3}),
        ("a", False, {"seed": 3}),
    ]
    [first, second] = read[0].rows
    assert (first.document, second.document) == (0, 1)
    assert first == Row(**{**vars(row(0)), "log_weights": ()})
    assert first.pareto_k == math.inf
    for line in path.read_text().splitlines()[:-1]:
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("name", ["r.parquet", f"r{records.UNFINISHED}"])
def test_what_is_no_record_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"dear diary\n")
    with pytest.raises(ValueError, match="is no record of a run"):
        records.read(tmp_path / name)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    with pytest.raises(ValueError, match="is no record of a run"):
        records.read(tmp_path / "other")
