"""A record holds all that a run's numbers are made of."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import row_of

WEIGHTS = (0.25, 0.75, 0.5)


def answer(index=0, weights=WEIGHTS, pilot=0, **more):
    log_w = torch.tensor(weights, dtype=torch.float64).log()
    estimate = Estimate.from_log_weights(log_w, num_tokens=4)
    spent = pilot + len(weights)
    found = Answer(index, estimate, f"0/{index}", evaluations=spent).about("aé b")
    return replace(found, **{"text": f"{index:x}"} | more)


def write(path, *answers):
    records.write(path, "a task", {"seed": 3}, [row_of(each) for each in answers])


def test_what_is_written_is_read(tmp_path):
    asked = answer(1, weights=(0.5,), pilot=7, accuracy=0.5, is_greedy=True)
    answers = [answer(0), asked]
    write(tmp_path / "r.parquet", *answers)
    [again] = records.read(tmp_path / "r.parquet")
    assert (again.task, again.answers) == ("a task", answers)
    assert again.settings["seed"] == 3
    assert again.settings["texts"] == again.texts_digest
    assert asked.evaluations == 1 + 7
    assert "log_weights" in pq.read_schema(tmp_path / "r.parquet").names
    without = answer().without_weights()
    write(tmp_path / "without", without)
    assert "log_weights" not in pq.read_schema(tmp_path / "without").names
    assert records.read(tmp_path / "without")[0].answers == [without]


def test_a_text_s_estimate_follows_from_its_sufficient_terms():
    made = row_of(answer())
    total, squares = made["log_sum_weights"], made["log_sum_squared_weights"]
    assert made["log_likelihood"] == pytest.approx(total - math.log(3))
    size = math.exp(2 * total - squares)
    assert made["effective_sample_size"] == pytest.approx(size)
    assert made["draws_stderr"] == pytest.approx(math.sqrt(1 / size - 1 / 3))
    assert made["stderr"] is None, "draws cannot tell what they never visit"
    assert (made["words"], made["bytes"], made["tokens"]) == (2, 5, 4)
    assert row_of(answer(sentences=2))["log_sum_weights"] is None


def test_a_killed_run_that_is_started_again_keeps_what_it_had(tmp_path):
    """lm-eval's cache answers for it: those answers do not come again."""
    path = tmp_path / f"run{records.UNFINISHED}"
    with records.journal(path, {"seed": 3}) as add:
        for task, index in (("b", 1), ("a", 0), ("b", 0)):
            add(task, answer(index))
    read = records.read(path)
    assert [(r.task, r.finished, r.settings["seed"]) for r in read] == [
        ("b", False, 3),
        ("a", False, 3),
    ]
    assert read[0].answers == [answer(n).without_weights() for n in (0, 1)]
    assert read[0].answers[0].estimate.pareto_k == math.inf
    with records.journal(path, {"seed": 3}) as add:
        add("b", answer(1, words=7))
    [again] = [record for record in records.read(path) if record.task == "b"]
    assert [a.words for a in again.answers] == [2, 7]


def test_processes_of_a_killed_run_leave_one_record(tmp_path):
    for rank, numbers in enumerate(((0, 2), (1, 3))):
        path = tmp_path / f"run_{rank}{records.UNFINISHED}"
        with records.journal(path, {"seed": 3}) as add:
            for n in numbers:
                add("a", answer(n))
    paths = sorted(tmp_path.glob(f"*{records.UNFINISHED}"))
    [record] = records.read_unfinished(paths)
    assert [a.index for a in record.answers] == [0, 1, 2, 3]
    assert not record.finished
    other = tmp_path / f"other{records.UNFINISHED}"
    with records.journal(other, {"seed": 4}):
        pass
    with pytest.raises(ValueError, match="several unfinished runs: name one of"):
        records.read_unfinished([*paths, other])
    assert records.read_unfinished([]) == []


def test_what_is_no_record_of_this_version_is_refused(tmp_path, monkeypatch):
    finished, killed = tmp_path / "r.parquet", tmp_path / f"r{records.UNFINISHED}"
    with monkeypatch.context() as patched:
        patched.setattr(records, "FORMAT", records.FORMAT - 1)
        write(finished, answer())
        with records.journal(killed, {"seed": 3}) as add:
            add("a", answer())
    for path in (finished, killed):
        with pytest.raises(ValueError, match=r"format 2, .* this one reads format 3"):
            records.read(path)
        path.write_bytes(b"dear diary\n")
        with pytest.raises(ValueError, match=r"is (no|not a) record of a run"):
            records.read(path)
    pq.write_table(pa.table({"a": [1]}), finished)
    with pytest.raises(ValueError, match="is no record of a run"):
        records.read(finished)
