"""Texts without support: the others are scored and kept, and the error comes last."""

from __future__ import annotations

import json
import math
import pickle

import pyarrow as pa
import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.report import results
from lm_latent_eval.scoring import files
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.scoring.files import Opening
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.records import Record, answer_of
from tests.missing_support import miss
from tests.rounding import agree

TEXTS = ["the fox", "Ada saw the fox .", "a zebra", "Bo saw Ada", "Ada"]
OTHERS = [0, 2, 4]


@pytest.fixture
def model(kglm_directory):
    return load(kglm_directory, device="cpu")


@pytest.fixture
def missing(monkeypatch):
    miss(monkeypatch)


def test_the_other_texts_keep_their_estimates(model, monkeypatch):
    """And the error survives workers."""
    whole = model.log_likelihood(TEXTS, estimator="is", num_samples=9, batch_size=2)
    miss(monkeypatch)
    with pytest.raises(MissedTextsError, match=r"text/1 \('Ada saw.*text/3") as raised:
        model.log_likelihood(TEXTS, estimator="is", num_samples=9, batch_size=2)
    found = raised.value.answers
    assert [answer.index for answer in found] == OTHERS
    assert agree([answer.estimate for answer in found], [whole[n] for n in OTHERS])
    assert "3 of 5 texts are scored" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.names) == (str(raised.value), raised.value.names)
    assert "Likewise text/3" in str(again)


@pytest.mark.usefixtures("missing")
def test_the_command_keeps_and_shows_the_others(kglm_directory, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    output = tmp_path / "out.jsonl"
    command = [
        *("estimate", str(kglm_directory), "--data", str(tmp_path / "texts.txt")),
        *("--output", str(output), "--estimator", "is", "--num-samples", "9"),
    ]
    for _ in range(2):  # the same command goes on, and says the same
        assert main(command) == 2
        said = capsys.readouterr()
        assert "only 3 of 5 texts" in said.out
        assert "text/1 ('Ada saw the fox .')" in said.err
        assert "3 of 5 texts are scored" in said.err
        _, *rows = map(json.loads, output.read_text().splitlines())
        assert sorted(row["document"] for row in rows) == OTHERS
    [record] = results.read(output)
    assert not record.finished
    assert all(math.isfinite(a.estimate.log_evidence) for a in record.answers)


@pytest.mark.usefixtures("missing")
def test_a_worker_keeps_the_others_of_its_block(kglm_directory):
    options = {"estimator": "is", "num_samples": 9}
    worker = files._Worker(Opening(str(kglm_directory), options, device="cpu"))
    block = pa.table({"documents": [[*range(5)]], "texts": [TEXTS]})
    answers = [answer_of(json.loads(row)) for row in worker(block)["row"].to_pylist()]
    assert sorted(answer.index for answer in answers) == OTHERS
    err = files.missing(Record("estimate", {"num_texts": 5}, answers, False))
    assert err.names == {1: "text/1", 3: "text/3"}
    assert [answer.index for answer in err.answers] == OTHERS
