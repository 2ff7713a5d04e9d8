"""Scored files and records lose nothing, and take nothing over from another run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.scoring import files, records
from lm_latent_eval.scoring.answer import Answer, Missed, MissedTextsError
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.records import row_of
from lm_latent_eval.scoring.scorer import Scorer
from tests.journals import sealed
from tests.rounding import agree

TEXTS = ["Ada saw the fox .", "the fox saw Bo.", "a zebra", "Ada"]


@pytest.fixture(scope="module")
def scored(spelled_directory):
    """Return what scores texts into a file."""
    checkpoint = load(spelled_directory, device="cpu").checkpoint

    def score(output, *, texts=TEXTS, shard=files.WHOLE, **options):
        chosen = ScoringOptions(**{"num_samples": 20} | options)
        scorer = Scorer(checkpoint, chosen, batch_size=1, quiet=True)
        files.score_into(scorer, texts, output, shard)
        return [*files.read_record(output).answers]

    return score


@pytest.fixture(scope="module")
def finished(scored, tmp_path_factory):
    """Return what a run finds and writes."""
    output = tmp_path_factory.mktemp("finished") / "deep" / "out.jsonl"
    items = scored(output)
    return items, output.read_text().splitlines()


@pytest.fixture
def output(tmp_path, finished):
    """Return a copy of the file of a finished run."""
    path = tmp_path / "out.jsonl"
    path.write_text("\n".join(finished[1]) + "\n")
    return path


def test_the_file_is_a_record_of_the_run(output, finished):
    items, lines = finished
    assert [json.loads(line)["document"] for line in lines[1:]] == [0, 1, 2, 3]
    head, *rows = map(json.loads, lines)
    assert (head["model"], head["num_samples"], head["seed"]) == ("kglm", 20, 0)
    assert (head["proposal"], head["unk"]) == ("adapted", "spelled")
    for row in rows:
        estimate = items[row["document"]].estimate
        assert row["log_likelihood"] == estimate.log_evidence
        assert row["log_weights"] == [*estimate.log_weights]
    record = files.read_record(output)
    assert record.answers == items and record.finished
    assert [answer.bytes for answer in items] == [*map(len, TEXTS)]
    assert len({answer.text for answer in items}) == len(TEXTS)
    output.write_text("".join(lines_of(output)[:3]))
    assert not files.read_record(output).finished


def test_another_run_is_refused(scored, output):
    before = output.read_text()
    for change, message in (
        ({"num_samples": 21}, "num_samples is 20 there and 21 here"),
        ({"unk": "closed"}, "unk is spelled there and closed here"),
        ({"texts": TEXTS[:2]}, "texts is .* there"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*another path to start anew"):
            scored(output, **change)
    assert output.read_text() == before


def test_an_interrupted_run_goes_on_where_it_stopped(
    scored, finished, tmp_path, monkeypatch
):
    whole = finished[0]
    output, read = tmp_path / "out.jsonl", []
    row_of = files.row_of

    def interrupted(answer):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(answer.index)
        return row_of(answer)

    monkeypatch.setattr(files, "row_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scored(output)
    assert not output.exists()
    assert files.is_there(output)
    left = files.read_record(output)
    assert [a.index for a in left.answers] == sorted(read) and not left.finished
    output.touch()
    assert files.read_record(output) == left, "an empty file says nothing"
    again = []
    monkeypatch.setattr(files, "row_of", lambda a: again.append(a.index) or row_of(a))
    assert agree(scored(output), whole)
    assert sorted(read + again) == [0, 1, 2, 3], "nothing twice"
    monkeypatch.setattr(files, "row_of", None)
    done = scored(output)
    assert agree(done, whole), "nothing left to do"


def test_what_lacks_estimates_gets_them(scored, output, finished, tmp_path):
    """A line that somebody removed, or all of them."""
    whole, lines = finished[0], lines_of(output)
    for left in ("", lines[0], "".join(lines[:2] + lines[3:])):
        output.write_text(left)
        assert scored(output) == whole
        assert sorted(lines_of(output)) == sorted(lines), "each of them once"
        assert [*tmp_path.glob("out*")] == [output]


def test_what_a_kill_leaves_at_the_end_is_removed(scored, tmp_path, monkeypatch):
    """Between writing the file and removing the journal."""
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", lambda _: None)
        whole = scored(output)
    assert len([*tmp_path.glob("out*")]) == 2, "premise"
    assert scored(output) == whole
    assert [*tmp_path.glob("out*")] == [output]


# -- blocks ---------------------------------------------------------------------------


def seen(texts):
    """Return what settings say of texts."""
    found = files.SeenTexts(texts)
    assert [*found] == [*texts]
    return {"num_texts": found.number, "texts": found.digest}


def test_blocks_have_what_is_left_and_no_more_is_read_than_they_need():
    texts, read = ["a b", "c", "d e f", "g", "h"], []
    one_by_one = (read.append(t) or t for t in texts)
    found = files.blocks(one_by_one, [1, 0, 1, 1, 1], 4, seen(texts))
    assert next(found) == {0: "a b", 2: "d e f"}
    assert read == texts[:3]
    assert [*found] == [{3: "g", 4: "h"}]


def test_blocks_move_no_number(scored, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 3)
    assert agree(scored(tmp_path / "out.jsonl"), finished[0])


class MissesLong:
    """Finds no latent of texts of several words."""

    def score_texts(self, queries):
        missed = Missed(queries)
        for query in queries:
            with missed.aside(query):
                if " " in query.text:
                    raise MissedSupportError("too long")
                yield replace(Answer.exact(-1.0, query.text), index=query.index)
        missed.tell()


def test_texts_without_a_number_are_named_at_the_end_of_all_blocks(monkeypatch):
    texts = ["a b", "c", "d e f", "g"]
    monkeypatch.setattr(files, "BLOCK", 1)
    found = []
    with pytest.raises(MissedTextsError, match=r"text/0 \('a b'.*text/2") as raised:
        for answer in files.answers_of(MissesLong(), texts, seen(texts)):
            found.append(answer.words)
    assert found == [1, 1] and raised.value.of == 4


def lines_of(output) -> list[str]:
    return output.read_text().splitlines(keepends=True)


# -- shards ---------------------------------------------------------------------------


def test_shards_are_the_run_that_scores_all(scored, finished, tmp_path):
    paths = [tmp_path / f"{i}.jsonl" for i in (1, 2, 3)]
    for path, shard in zip(paths, ("1/3", "2/3", "3/3"), strict=True):
        scored(path, shard=files.Shard.parse(shard))
    records = {path: files.read_record(path) for path in paths}
    assert [len(record.answers) for record in records.values()] == [2, 1, 1]
    assert all(record.finished for record in records.values())
    found = files.together(dict(reversed(records.items())))
    assert agree([*found.answers], finished[0]) and found.finished
    whole = tmp_path / "whole.jsonl"
    whole.write_text("\n".join(finished[1]) + "\n")
    assert found.settings == files.read_record(whole).settings

    cut = records[paths[1]]
    records[paths[1]] = replace(cut, answers=[], finished=False)
    assert not files.together(records).finished
    del records[paths[1]]
    with pytest.raises(ValueError, match="shard 2/3 is missing: give the files of all"):
        files.together(records)
    with pytest.raises(ValueError, match=r"copy has the same shard as .*1\.jsonl: 1/3"):
        files.together(records | {Path("copy"): records[paths[0]]})
    for other, said in (
        ({"shard": "2/2"}, "shard is i/2 there and i/3 in"),
        ({"shard": "2/3", "seed": 1}, "seed is 1 there and 0 in"),
        ({}, "shard is i/1 there and i/3"),
    ):
        odd = {name: v for name, v in cut.settings.items() if name != "shard"} | other
        with pytest.raises(ValueError, match=rf"^odd is of another run than .*{said}"):
            files.together(records | {Path("odd"): replace(cut, settings=odd)})
    with pytest.raises(ValueError, match=r"shard is 1/3 there and 2/3 here"):
        scored(paths[0], shard=files.Shard(2, 3))


@pytest.mark.parametrize("value", ["", "0/1", "2/1", "1/0", "a/b", "1/2/3", 3, "1 / 2"])
def test_no_shard(value):
    with pytest.raises(ValueError, match="expected i/n with 1 <= i <= n"):
        files.Shard.parse(value)


STRINGS = ("bound", "estimator", "stream", "text")
OUT_OF_RANGE = {
    "document": [-1, 4, 0.0, True],
    "log_likelihood": ["inf", "nan"],
    "stderr": [-1.0],
    "draws_stderr": [-1.0],
    "draws_degrees": [-1.0],
    "histories": [0, 20.0],
    "tokens": [-1],
    "bytes": [17.0],
    "unknown_words_not_spelled": [0.5],
    "bound": ["lower"],
    "is_greedy": [0],
    "tied": [0],
}
"""Values of the right type, or nearly, that cannot be."""


def test_an_edited_record_is_refused_by_its_line(scored, output, finished):
    head, *lines = finished[1]
    first, *rest = sorted(lines, key=lambda line: json.loads(line)["document"])
    record = json.loads(first)
    del record["digest"]
    for name in record:
        odd = [{}, [[1]], *OUT_OF_RANGE.get(name, ())]
        odd += [3] if name in STRINGS else ["odd"]
        edited = [record | {name: value} for value in odd]
        edited.append({key: record[key] for key in record.keys() - {name}})
        for one in edited:  # by somebody who knows the digest
            content = "\n".join([head, *rest, sealed(head, one)]) + "\n"
            output.write_text(content)
            where = r"out\.jsonl, line 5 .* remove"
            with pytest.raises(ValueError, match=where) as caught:
                scored(output)
            assert "\n" not in str(caught.value)
            assert output.read_text() == content
    output.write_text("\n".join([head, *rest, rest[1]]) + "\n")
    with pytest.raises(ValueError, match=r"line 5 .*text 2 is in another line too"):
        scored(output)


def test_only_a_regular_file_keeps_estimates(scored, tmp_path):
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(ValueError, match="kept in a regular file"):
            scored(path)
    assert not [*tmp_path.iterdir()]


# -- records hold all that a run's numbers are made of ---------------------------------


def answer(index=0, **more):
    log_w = torch.tensor([0.25, 0.75, 0.5], dtype=torch.float64).log()
    estimate = Estimate.from_log_weights(log_w, num_tokens=4)
    found = Answer(index, estimate, f"0/{index}").about("aé b")
    return replace(found, **{"text": f"{index:x}"} | more)


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
    assert read[0].answers[0].estimate.pareto_k is None
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


def test_what_is_no_record_of_this_version_is_refused(tmp_path, monkeypatch):
    """A journal of another version has its own test."""
    path = tmp_path / "r.parquet"
    with monkeypatch.context() as patched:
        patched.setattr(records, "FORMAT", records.FORMAT - 1)
        records.write(path, "a task", {"seed": 3}, [row_of(answer())])
    with pytest.raises(ValueError, match=r"format 3, .* this one reads format 4"):
        records.read(path)
    path.write_bytes(b"dear diary\n")
    with pytest.raises(ValueError, match=r"is (no|not a) record of a run"):
        records.read(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ValueError, match="is no record of a run"):
        records.read(path)
