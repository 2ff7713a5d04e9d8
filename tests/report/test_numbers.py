"""Numbers from a record alone."""

import csv
import json
import math
import re
from dataclasses import replace

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.harness import running
from lm_latent_eval.report import numbers as report_numbers
from lm_latent_eval.report import page
from lm_latent_eval.report.numbers import NO_WEIGHTS
from lm_latent_eval.report.results import read
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import files, records
from lm_latent_eval.scoring.metrics import METRICS
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from tests.journals import sealed
from tests.report.test_compare import estimated, questions, record


def numbers(made):
    return report_numbers.numbers(Run.of(made))


TEXTS = ["Ada saw the fox .", "the fox saw Bo.", "a zebra"]


@pytest.fixture(scope="module")
def scored(spelled_directory, tmp_path_factory):
    """A file of estimates with log-weights, and its items."""
    loaded = load(spelled_directory, device="cpu").checkpoint
    scorer = Scorer(loaded, ScoringOptions("is", num_samples=20), quiet=True)
    output = tmp_path_factory.mktemp("scored") / "out.jsonl"
    files.score_into(scorer, TEXTS, output)
    return output, [*files.read_record(output).answers]


def test_they_are_those_of_the_run(scored, capsys, refused):
    output, items = scored
    read = files.read_record(output)
    for name, number in numbers(read).items():
        assert number.value == METRICS[name](items), name
        if error := METRICS.get(f"{name}_stderr"):
            known = number.stderr
            assert error(items) == ("N/A" if known is None else pytest.approx(known))
            assert number.draws_stderr or number.draws_stderr is None, name
    assert main(["recompute", str(output)]) == 0
    shown = capsys.readouterr().out
    found = numbers(read)["word_perplexity"]
    assert report_numbers.written("word_perplexity", found) in shown
    assert "estimator=is num_samples=20" in shown
    assert re.search(r"texts_without_monte_carlo_error +3\n", shown)
    assert main(["recompute", str(output), "--format", "csv"]) == 0
    lines = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    found = {line["metric"]: line for line in lines}
    assert float(found["bits_per_byte"]["value"]) == METRICS["bits_per_byte"](items)
    refused("recompute", output, "--format", "word")


def test_what_takes_log_weights_says_that_there_are_none(scored):
    read = files.read_record(scored[0])
    without = estimated(read, log_weights=())
    found = numbers(without)
    assert found["corpus_token_perplexity"].value == NO_WEIGHTS
    assert found["effective_samples_corpus"].value == NO_WEIGHTS
    assert found["word_perplexity"] == numbers(read)["word_perplexity"]
    assert NO_WEIGHTS in report_numbers.table(Run.of(without))
    accuracy = numbers(questions([True, True, False, True]))["acc"]
    error = math.sqrt(0.75 * 0.25 / 3)
    assert (accuracy.value, accuracy.stderr) == (0.75, pytest.approx(error))
    exact = numbers(record())["corpus_token_perplexity"].value
    assert isinstance(exact, float), "nothing is drawn: it is the same"


def test_the_error_over_texts_holds_the_one_over_draws():
    checked = [record(kind="stochastic lower", spread=s) for s in (3.0, 0.0)]
    checked = [estimated(each, stderr=0.2) for each in checked]
    found, quiet = (numbers(each)["bits_per_byte"] for each in checked)
    # of 60 texts: errors in squares, biases as they are
    drawn = math.hypot(0.2 * math.sqrt(60), 60 * 0.2**2 / 2) / 6000 / math.log(2)
    assert found.draws_stderr == found.monte_carlo_stderr == pytest.approx(drawn)
    assert found.stderr == pytest.approx(3 / math.sqrt(60) / 100 / math.log(2), rel=0.3)
    assert quiet.stderr == quiet.monte_carlo_stderr, "never below it"
    alone = numbers(record(kind="stochastic lower", spread=3.0))["bits_per_byte"]
    assert (alone.stderr, alone.monte_carlo_stderr) == (None, None)
    assert alone.draws_stderr == found.draws_stderr


def test_copies_of_a_text_are_one_of_several_draws():
    once = estimated(record(kind="stochastic lower", spread=3.0), stderr=0.2)
    again = [replace(a, index=60 + a.index, stream="") for a in once.answers]
    both = replace(once, answers=[*once.answers, *again])
    one, two = (numbers(each)["bits_per_byte"] for each in (once, both))
    assert two.stderr == pytest.approx(one.stderr)
    assert two.draws_stderr < one.draws_stderr


def test_a_file_that_cannot_be_explained_is_named(scored, tmp_path, refused):
    head, *rows = scored[0].read_text().splitlines()
    settings = json.loads(head)
    lacking = json.dumps({k: v for k, v in settings.items() if k != "vocabulary"})
    resealed = [sealed(lacking, json.loads(row)) for row in rows]
    cut = tmp_path / "cut.jsonl"
    for lines, message in (
        ([head], f"{cut} has no estimate yet"),
        ([lacking, *resealed], f"{cut} does not say its 'vocabulary'"),
        (['{"format": 4, "seed": 0}'], f"{cut} is not a file of estimates"),
    ):
        cut.write_text("\n".join(lines) + "\n")
        assert message in refused("explain", cut)


def test_an_unfinished_run_says_so(scored, tmp_path, capsys):
    path = tmp_path / f"record_0{records.UNFINISHED}"
    made = record()
    [of_file] = read(scored[0])
    with records.journal(path, of_file.settings | made.settings) as add:
        for answer in made.answers[:3]:
            add("t", answer)
    assert main(["recompute", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "t: 3 documents, m, " in said and " bytes (not finished)" in said
    assert main(["recompute", str(tmp_path), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "t: not finished" in said.err
    assert "texts_without_monte_carlo_error" in said.out and "N/A" in said.out
    assert main(["explain", str(tmp_path)]) == 0
    assert "Not finished: numbers are of 3 answers" in capsys.readouterr().out
    for changed, said in (({}, False), ({"finished": False}, True)):
        run = Run.of(replace(made, **changed))
        page.write({"A": [[run]]}, {}, tmp_path / "page.html")
        assert (", not finished" in (tmp_path / "page.html").read_text()) is said


def test_unfinished_runs_over_other_texts_are_not_mixed(tmp_path, refused):
    """Of the same model and settings: the run's digest tells them apart."""
    made = record()
    for run, number in (("a", 3), ("b", 1)):
        path = tmp_path / f"record_{run}_texts_0{records.UNFINISHED}"
        said = made.settings | {running.RUN_DIGEST: run}
        with records.journal(path, said) as add:
            for answer in made.answers[:number]:
                add("t", answer)
    said = refused("recompute", tmp_path)
    assert "several unfinished runs: name one of" in said and str(path) in said
    assert main(["recompute", str(path)]) == 0


def test_an_unfinished_file_of_estimates_is_explained_as_one(scored, tmp_path, capsys):
    lines = scored[0].read_text().splitlines(keepends=True)
    for number, said in ((len(lines), False), (2, True)):
        (tmp_path / "cut.jsonl").write_text("".join(lines[:number]))
        assert main(["explain", str(tmp_path / "cut.jsonl")]) == 0
        assert ("Not finished: numbers are of 1 ans" in capsys.readouterr().out) is said


def test_shards_have_the_table_of_one_run(spelled_directory, tmp_path, capsys, refused):
    """Given as files, one of them not finished elsewhere, or by their folder."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    command = ["estimate", str(spelled_directory), "--data", str(texts)]
    command += ["--num-samples", "20", "--device", "cpu", "--batch-size", "1"]
    assert main([*command, "--output", str(tmp_path / "whole.jsonl")]) == 0
    whole = capsys.readouterr().out
    folder = tmp_path / "shards"
    shards = [folder / f"{i}.jsonl" for i in (1, 2)]
    for i, path in enumerate(shards, start=1):
        assert main([*command, "--output", str(path), "--shard", f"{i}/2"]) == 0
    said = capsys.readouterr().out
    assert "documents, kglm, " in said and " (shard 2/2)" in said
    for given in ([folder], shards, shards[::-1]):
        assert main(["recompute", *map(str, given)]) == 0
        assert capsys.readouterr().out == whole
    assert "shard 2/2 is missing" in refused("recompute", shards[0], shards[0].parent)
    assert main(["recompute", str(shards[0])]) == 0
    assert " (shard 1/2)" in capsys.readouterr().out
    (folder / "texts.jsonl").write_text('{"text": "a"}\n')  # is no shard
    assert main(["compare", str(folder), str(tmp_path / "whole.jsonl")]) == 0
    assert "equal" in capsys.readouterr().out
    shards[1].unlink()
    assert "shard 2/2 is missing" in refused("recompute", folder)
