"""A scored file: nothing computed is lost, and nothing of another run is taken over."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.scoring import files
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from tests.journals import sealed
from tests.rounding import agree

TEXTS = ["Ada saw the fox .", "the fox saw Bo.", "a zebra", "Ada"]


@pytest.fixture(scope="module")
def checkpoint(spelled_directory):
    return spelled_directory


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def scored(checkpoint, output, *, texts=TEXTS, **options):
    loaded = load(checkpoint, device="cpu").checkpoint
    scorer = Scorer(loaded, ScoringOptions(**options), batch_size=1, quiet=True)
    return files.score_file(scorer, texts, output)


def test_the_file_says_what_was_done_and_found(checkpoint, tmp_path):
    output = tmp_path / "deep" / "out.jsonl"
    items = scored(checkpoint, output, num_samples=20, seed=3)
    head, *rest = [json.loads(line) for line in output.read_text().splitlines()]
    assert (head["model"], head["num_samples"], head["seed"]) == ("kglm", 20, 3)
    assert (head["proposal"], head["unk"]) == ("adapted", "spelled")
    records = {record["document"]: record for record in rest}
    for n, item in enumerate(items):
        estimate, record = item.estimate, records[n]
        assert record["log_likelihood"] == estimate.log_evidence
        shape = record["pareto_k"]
        assert estimate.pareto_k == (None if shape is None else float(shape))
        assert record["log_weights"] == [*estimate.log_weights]
        assert record["bound"] == str(estimate.bound)


def test_an_interrupted_run_goes_on_where_it_stopped(checkpoint, tmp_path, monkeypatch):
    whole = scored(checkpoint, None, num_samples=20)
    output, read = tmp_path / "out.jsonl", []
    row_of = files.row_of

    def interrupted(answer):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(answer.index)
        return row_of(answer)

    monkeypatch.setattr(files, "row_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scored(checkpoint, output, num_samples=20)
    assert not output.exists()
    assert files.is_there(output)
    left = files.read_record(output)
    assert [a.index for a in left.answers] == sorted(read) and not left.finished
    again = []
    monkeypatch.setattr(files, "row_of", lambda a: again.append(a.index) or row_of(a))
    assert agree(scored(checkpoint, output, num_samples=20), whole)
    assert sorted(read + again) == [0, 1, 2, 3], "nothing twice"
    monkeypatch.setattr(files, "row_of", None)
    done = scored(checkpoint, output, num_samples=20)
    assert agree(done, whole), "nothing left to do"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 21}, "num_samples is 20 there and 21 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"unk": "closed"}, "unk is spelled there and closed here"),
        ({"texts": TEXTS[:2]}, "texts is .* there"),
    ],
)
def test_another_run_is_refused(checkpoint, tmp_path, change, message):
    output = tmp_path / "out.jsonl"
    scored(checkpoint, output, num_samples=20)
    before = output.read_text()
    with pytest.raises(ValueError, match=f"{message}.*another path to start anew"):
        scored(checkpoint, output, **({"num_samples": 20} | change))
    assert output.read_text() == before


def test_what_lacks_estimates_gets_them(checkpoint, tmp_path):
    """A line that somebody removed, or all of them."""
    output = tmp_path / "out.jsonl"
    whole = scored(checkpoint, output, num_samples=20)
    lines = lines_of(output)
    for left in ("", lines[0], "".join(lines[:2] + lines[3:])):
        output.write_text(left)
        assert scored(checkpoint, output, num_samples=20) == whole
        assert sorted(lines_of(output)) == sorted(lines), "each of them once"
        assert [*tmp_path.glob("out*")] == [output]


def test_what_a_kill_leaves_at_the_end_is_removed(checkpoint, tmp_path, monkeypatch):
    """Between writing the file and removing the ledger."""
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", lambda _: None)
        whole = scored(checkpoint, output, num_samples=20)
    assert len([*tmp_path.glob("out*")]) == 2, "premise"
    assert scored(checkpoint, output, num_samples=20) == whole
    assert [*tmp_path.glob("out*")] == [output]


def lines_of(output) -> list[str]:
    return output.read_text().splitlines(keepends=True)


CHANGES = {
    "document": [1, "0", 0.0, True, None, -1, 4],
    "option": ["0", None],
    "log_likelihood": ["-11.5", None, [], "inf", "nan"],
    "stderr": ["0.1", -1.0],
    "draws_stderr": ["0.1", None, -1.0],
    "effective_sample_size": ["20", []],
    "pareto_k": ["0.5", {}],
    "num_samples": ["20", 20.0, 0],
    "tokens": ["6", None, -1],
    "unseen": ["0.5", []],
    "upper": ["-3", {}],
    "upper_stderr": ["0.1", {}],
    "at_least": ["-13", {}],
    "at_most": ["-11", {}],
    "bound": ["lower", 3],
    "estimator": [3, None],
    "log_weights": [["-1.0"], -1.0, None, {}],
    "stream": [3, None],
    "unknown_words_not_spelled": ["0", 0.5],
    "gaps_not_charged": [None],
    "unknown_words_left_out": ["0", None],
    "draws_degrees": ["none", None, -1.0],
    "sentences": [[1]],
    "evaluations": ["20", None],
    "text": [3, None],
    "words": ["5", None],
    "bytes": ["17", 17.0],
    "is_greedy": [0, "no"],
    "accuracy": ["1"],
    "tied": [0, "no"],
    "canonical": [[]],
}


def test_the_file_is_a_record_of_the_run(checkpoint, tmp_path):
    output = tmp_path / "out.jsonl"
    items = scored(checkpoint, output, num_samples=20)
    record = files.read_record(output)
    assert record.answers == items
    assert [answer.bytes for answer in record.answers] == [len(text) for text in TEXTS]
    assert len({answer.text for answer in record.answers}) == len(TEXTS)
    assert {answer.evaluations for answer in record.answers} <= {525, 2925}
    assert record.settings["unk"] == "spelled"
    assert record.finished
    whole = output.read_text()
    output.write_text("".join(lines_of(output)[:3]))
    assert not files.read_record(output).finished
    output.write_text(whole)
    old = output.read_text().replace('"text":', '"txt":')
    output.write_text(old)
    with pytest.raises(ValueError, match=r"line 2 .*'txt'"):
        files.read_record(output)


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory):
    output = tmp_path_factory.mktemp("finished") / "out.jsonl"
    scored(checkpoint, output, num_samples=20)
    return output.read_text().splitlines()


@pytest.mark.parametrize("name", CHANGES)
def test_an_edited_record_is_refused_by_its_line(checkpoint, tmp_path, finished, name):
    head, *lines = finished
    first, *rest = sorted(lines, key=lambda line: json.loads(line)["document"])
    record = json.loads(first)
    del record["digest"]
    sums = {"log_sum_weights", "log_sum_squared_weights"}  # of weights that are there
    assert {*record} == {*CHANGES} | sums, "premise: every field"
    missing = {key: value for key, value in record.items() if key != name}
    new = ("upper_stderr", "at_least", "at_most")  # which records of before have not
    absent = [] if name in new else [missing]
    edited = [*absent, *(record | {name: value} for value in CHANGES[name])]
    output = tmp_path / "out.jsonl"
    # Whoever edits them may know the digest, or keep the old one.
    old = {"digest": json.loads(first)["digest"]}
    lines = [json.dumps(one | old) for one in edited]
    lines += [sealed(head, one) for one in edited]
    for line in lines:
        content = "\n".join([head, *rest, line]) + "\n"
        output.write_text(content)
        with pytest.raises(ValueError, match=r"out\.jsonl, line 5 .* remove") as caught:
            scored(checkpoint, output, num_samples=20)
        assert "\n" not in str(caught.value)
        assert output.read_text() == content


def test_a_text_that_is_there_twice_is_refused(checkpoint, tmp_path, finished):
    output = tmp_path / "out.jsonl"
    output.write_text("\n".join([*finished, finished[2]]) + "\n")
    with pytest.raises(ValueError, match=r"line 6 .* is in line 3 too"):
        scored(checkpoint, output, num_samples=20)


def test_only_a_regular_file_keeps_estimates(checkpoint, tmp_path):
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(ValueError, match="kept in a regular file"):
            scored(checkpoint, path)
    assert not [*tmp_path.iterdir()]


def test_the_command_prints_every_rate(checkpoint, text_file, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    command = ["estimate", str(checkpoint), "--data", str(text_file)]
    command += ["--num-samples", "20", "--output", str(output)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    items = scored(checkpoint, None, num_samples=20)
    tokens = sum(i.estimate.num_tokens for i in items)
    total = sum(i.estimate.log_evidence for i in items)
    num_bytes = sum(map(len, TEXTS))
    assert f"4 texts, {tokens} predicted tokens, {num_bytes} bytes" in printed
    rate = -total / num_bytes / math.log(2)
    assert f"bits_per_byte {rate:.4f} ± " in " ".join(printed.split())
    assert "num_samples=20 proposal=adapted" in printed


def test_another_model_than_is_there_is_refused(checkpoint, text_file, capsys):
    command = ["estimate", str(checkpoint), "--data", str(text_file)]
    assert main([*command, "--model", "latent_rnng"]) == 2
    assert "holds a kglm model, not a rnng one" in capsys.readouterr().err
    assert main([*command, "--revision", "v1"]) == 2
    assert "only repositories of the hub have revisions" in capsys.readouterr().err


def test_texts_without_a_byte_have_no_rate_per_byte(checkpoint, tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n{"tokens": []}\n')
    command = ["estimate", str(checkpoint), "--data", str(tmp_path / "empty.jsonl")]
    assert main([*command, "--num-samples", "5"]) == 0
    printed = capsys.readouterr().out
    assert "2 texts, 2 predicted tokens, 0 bytes" in printed
    assert f"{'bits_per_byte':36}refused: no bytes ± N/A" in printed
    assert "token_perplexity" in printed
