"""Runs of other harnesses, as they write them, compared."""

import csv
import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.report.compare import as_text, power, rank, rows
from lm_latent_eval.report.csv_file import MOST_SIDES, read_table
from lm_latent_eval.report.units import Run, of_answers
from tests.conftest import PROJECT
from tests.report.test_compare import (
    compare,
    estimated,
    lm_eval_folder,
    questions,
    record,
)

RUNS = PROJECT / "tests/reference/runs"
"""Made by inspect_ai's and Every Eval Ever's own writers."""
INSPECT = [str(RUNS / f"inspect_{name}.json") for name in ("good", "poor")]
EVERY = [str(RUNS / f"eee_{name}.json") for name in ("good", "poor")]


def log(name):
    return json.loads((RUNS / f"inspect_{name}.json").read_text())


def shown(capsys, *arguments):
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def test_passages_are_clusters_by_themselves(capsys, refused):
    out = shown(capsys, *INSPECT)
    assert "mill: 20 questions in 10 clusters (passage)" in out
    assert "Undecided: inspect_good has" in out, "of ten clusters"
    assert "over answers" in out
    alone = shown(capsys, *INSPECT, "--cluster", "none")
    assert "mill: 20 questions\n" in alone
    said = refused("compare", *INSPECT, "--cluster", "topic")
    assert "they say passage" in said


def test_archives_have_the_scores_of_the_logs_they_were_made_of(capsys):
    """They keep no passage, and of two answers the mean."""
    lines = EVERY[0].replace(".json", "_samples.jsonl")
    found = []
    for pair in (INSPECT, EVERY, (INSPECT[0], EVERY[1]), (lines, EVERY[1])):
        table = shown(capsys, *pair, "--cluster", "none", "--format", "csv")
        [row] = csv.DictReader(io.StringIO(table))
        found.append([row[name] for name in ("value", "±", "from", "to", "in")])
    assert all(each == found[0] for each in found) and found[0][-1] == "match"


def test_what_would_decide_is_said(capsys, refused):
    out = shown(capsys, *INSPECT, "--power", "5")
    assert (
        "To decide 5 points of match at 80% between inspect_good and inspect_poor:"
        in out
    )
    assert "Shares of the variance: repeats 100.0%; without repeats" in out
    assert "480 questions" in out and "without repeats 20 questions would do" in out
    table = shown(capsys, *INSPECT, "--power", "5", "--format", "csv")
    assert "needed for 5 points of match" in table
    assert "expected a positive" in refused("compare", *INSPECT, "--power", "0")


def test_more_latents_help_where_draws_are_the_error():
    """Twice the texts halve the variance; of draws, more latents would do it all."""
    a, b, other = record(3.0), record(3.0, "stochastic lower"), record(0.0, seed=1)
    [of_a], [of_b] = (compare({"A": [[each]], "B": [[other]]}) for each in (a, b))
    exact, drawn = power(of_a, 0.2), power(of_b, 0.2)
    number = 60 * (2.8 * of_a.difference.stderr / 0.002) ** 2
    assert exact.needed.number == pytest.approx(number, rel=0.03)
    assert drawn.needed.number > exact.needed.number
    assert 0 < drawn.shares["draws of latents"] < 0.1, "0.2 of 1.4 nats a text"


def test_more_texts_do_not_find_what_draws_miss():
    """A nat of each text, of 100 bytes, is 0.01 nats a byte of any number of texts."""
    missing = estimated(record(3.0, "stochastic lower"), stderr=math.hypot(0.2, 1.0))
    [found] = compare({"A": [[missing]], "B": [[record(0.0, seed=1)]]})
    said = power(found, 0.2)
    assert said.needed is None and "more latents a text help" in said.sentence
    assert power(found, 10.0).needed is not None


def test_more_questions_are_no_more_runs():
    """A's runs have 5 of 10 right and all, so their mean's error is 25 points."""
    a, b = (
        [[questions([True] * n + [False] * (10 - n))] for n in (5, m)] for m in (10, 5)
    )
    [found] = compare({"A": a, "B": b})
    said = power(found, 1.0)
    assert said.needed is None
    assert "would move that by 25 points of accuracy: more runs help" in said.sentence


def test_what_lacks_is_said_with_what_makes_it(refused, tmp_path):
    none, other, odd, endless = (log("poor") for _ in range(4))
    endless["samples"][3]["epoch"] = math.inf
    none["samples"] = None
    other["samples"][3]["input"] = "Something else?"
    odd["samples"][3]["scores"]["match"]["value"] = "maybe"
    for content, said in (
        (none, "--no-log-samples"),
        (other, "is another one in log than in inspect_good"),
        (odd, "sample 4: scores: match: expected a number"),
        (endless, "sample 4: epoch=inf: expected a whole number"),
    ):
        (tmp_path / "log.json").write_text(json.dumps(content))
        assert said in refused("compare", INSPECT[0], tmp_path / "log.json")
    (tmp_path / "log.eval").write_bytes(b"PK")
    said = refused("compare", tmp_path / "log.eval", EVERY[0])
    assert "inspect log convert" in said
    assert "--metric is one of match" in refused("compare", *INSPECT, "--metric", "f1")
    shutil.copy(EVERY[0], tmp_path / "eee.json")
    said = refused("compare", str(tmp_path / "eee.json"), EVERY[1])
    assert "no eee_samples.jsonl beside it" in said and "every_eval_ever conv" in said
    text = (RUNS / "eee_good_samples.jsonl").read_text()
    (tmp_path / "eee_samples.jsonl").write_text(text + '{"sample_id": 3}\n')
    said = refused("compare", str(tmp_path / "eee.json"), EVERY[1])
    assert "eee_samples.jsonl, line 41" in said
    rates = json.loads((tmp_path / "eee.json").read_text())
    for result in rates["evaluation_results"]:
        result["metric_config"]["metric_name"] = "word_perplexity"
        result["evaluation_result_id"] = "task/word_perplexity"
    (tmp_path / "eee.json").write_text(json.dumps(rates))
    said = refused("compare", str(tmp_path / "eee.json"), EVERY[1])
    assert "compare the runs themselves" in said


def generated(folder, rows, metrics=("exact_match",)):
    """A folder of lm-eval whose answers were written."""
    listed = [{"metric": metric} for metric in metrics]
    task = {"output_type": "generate_until", "metric_list": listed}
    found = {"said": {"exact_match,none_stderr": float("nan")}}
    return str(lm_eval_folder(folder, "said", rows, task, results=found))


def sample(n, score, **more):
    return {
        "doc_id": n,
        "doc": {"context": f"passage {n // 2}", "text": f"{n}?"},
        "doc_hash": f"hash {n}",
        "arguments": {"gen_args_0": {"arg_0": f"{n}?", "arg_1": {"until": ["."]}}},
        "resps": [["a"]],
        "filter": "none",
        "exact_match": score,
        "f1": score / 2,
        **more,
    }


def test_written_answers_of_lm_eval(capsys, refused, tmp_path):
    """0.4 has a number a document; 0.5 one a repeat, where there are several."""
    repeats = {"scores_per_repeat": {"exact_match": [1.0, 0.0]}}
    a = generated(tmp_path / "a", [sample(n, float(n % 5 > 0)) for n in range(40)])
    b = generated(tmp_path / "b", [sample(n, 0.5, **repeats) for n in range(40)])
    out = shown(capsys, a, b)
    assert "said: 40 questions in 20 clusters (context)" in out
    assert "0.300" in out
    assert "over answers" in out
    assert "0.150" in shown(capsys, a, b, "--metric", "f1")
    said = refused("compare", a, b, "--metric", "bleu")
    assert "line 1: bleu: there is none; --metric NAME takes one of" in said
    other = [sample(n, 1.0, doc_hash="another") for n in range(40)]
    c = generated(tmp_path / "c", other)
    assert "is another one" in refused("compare", a, c)
    for path in Path(a).rglob("samples_*"):
        path.unlink()
    said = refused("compare", a, b, "--metric", "f1")
    assert "f1 is of each stands in sample logs; run it with --log_samples" in said


def scores(name, values, **more):
    rows = [{"unit": str(n), "score": value} for n, value in enumerate(values)]
    return [Run("t", "score", {"model": name}, of_answers(rows), **more)]


def test_runs_of_a_model_answer_questions_as_one_side():
    a = [scores("a", [float(n % 4 > 0) for n in range(s, s + 80)]) for s in (0, 1)]
    b = [scores("b", [float(n % 2) for n in range(80)])]
    [found] = compare({"A": a, "B": b})
    assert found.accuracy is None
    assert found.scores == pytest.approx((0.75, 0.5))
    assert found.decided
    costs = {"A": [2.0, 3.0] * 20, "B": [1.0, 2.5] * 20}
    a, b = (scores(name, x, lower_is_better=True) for name, x in costs.items())
    [found] = compare({"A": [a], "B": [b]})
    assert "B is better: B has 0.75" in found.verdict
    assert "less score" in found.verdict
    few = {"A": [scores("a", [2.0] * 9)], "B": [scores("b", [1.0] * 9)]}
    assert "9 questions are too few" in compare(few)[0].verdict
    [one] = compare({name: [scores(name, [1.0])] for name in "AB"})
    with pytest.raises(ValueError, match="t has one question"):
        power(one, 1.0)


def test_an_interval_reaches_no_further_than_is_possible():
    """One text of ten differs much, so that the tail's end would be far away."""
    likelihoods = [-120.0] * 9 + [-2000.0]
    a, b = record(spread=0.0, texts=10), record(spread=0.0, texts=10)
    far = [
        replace(x, estimate=replace(x.estimate, log_evidence=nats))
        for x, nats in zip(a.answers, likelihoods, strict=True)
    ]
    [found] = compare({"A": [[replace(a, answers=far)]], "B": [[b]]})
    assert found.difference.interval[1] > found.scores[0], "premise"
    assert found.interval[1] == found.scores[0]
    low, high = found.interval
    assert low < 0 < high and not found.decided
    few = {"A": [[record(texts=5)]], "B": [[record(3.0, texts=5)]]}
    [found] = compare(few)
    assert found.interval == (-math.inf, math.inf)
    assert "-∞" in as_text([found])


def test_several_sides_share_one_level_for_p_ends_and_verdict():
    sides = {name: [[record(gain, seed=n)]] for n, (name, gain) in enumerate(GAINS)}
    found = compare(sides)
    for each in found:
        alone = compare({side.name: [[*side.runs]] for side in each.sides})[0]
        assert each.adjusted == min(1.0, len(found) * alone.p_value)
        low, high = each.interval
        assert each.decided is (low > 0 or high < 0) is (each.adjusted < 0.05)
        assert low < alone.interval[0] and alone.interval[1] < high
    assert {each.decided for each in found} == {True, False}, "premise"
    assert "all together at 95 %" in as_text(found)


GAINS = (("A", 0.0), ("B", 0.1), ("C", 1.0), ("D", 3.0))


def test_what_differs_by_rounding_alone_is_equal():
    """Not better by 0.0000 of it; nor are equal scores of questions undecided."""
    a = record(1.0)
    nearly = [
        replace(x.estimate, log_evidence=x.estimate.log_evidence + 1e-9 * (n + 1))
        for n, x in enumerate(a.answers)
    ]
    answers = [replace(x, estimate=e) for x, e in zip(a.answers, nearly, strict=True)]
    [found] = compare({"A": [[a]], "B": [[replace(a, answers=answers)]]})
    assert not found.decided
    assert "Equal: A and B differ by no more than rounding does" in found.verdict
    [far] = compare({"A": [[a]], "B": [[record(1.0 + 1e-2)]]})
    assert far.decided, "a hundredth of a nat on each text is a difference"
    for right in ([True] * 6 + [False] * 6, [True] * 12):
        [found] = compare({name: [[questions(right)]] for name in "AB"})
        assert "Equal: A and B have the same accuracy on each of 12" in found.verdict
    [found] = compare({name: [scores(name, [0.5, 2.0] * 6)] for name in "AB"})
    assert "Equal: A and B have the same score" in found.verdict


def test_questions_are_counted_and_no_options():
    a, b = questions([True] * 60), questions([True] * 50)
    with pytest.raises(ValueError, match="A has 60 questions and B 50, of which 50"):
        compare({"A": [[a]], "B": [[b]]})


def test_many_models_are_ranked_with_what_holds_together():
    gains = {"A": 0.0, "B": 1.0, "C": 1.02, "D": 3.0}
    numbered = enumerate(gains.items(), start=4)
    sides = {name: [[record(g, seed=k)]] for k, (name, g) in numbered}
    found = compare(sides)
    [ranking] = rank(found)
    assert [name for name, _ in ranking.models][::3] == ["D", "A"]
    assert ranking.letters["B"] == ranking.letters["C"]
    assert len({*ranking.letters.values()}) == 3
    assert "D is better than every other model; 5 of 6 pairs" in ranking.verdict
    [alone] = compare({name: sides[name] for name in "AB"})
    together = found[0]
    assert together.adjusted > alone.p_value == together.p_value
    assert "ranking" in as_text(found)
    assert rows(found)[0]["p"] == together.adjusted
    begun = replace(sides["B"][0][0], finished=False)
    begun = replace(begun, answers=begun.answers[::2])
    assert not rank(compare({**sides, "B": [[begun]]})), "pairs are of other texts"


def test_what_chance_may_do_among_many_is_not_decided():
    """A difference that alone is decided, and with nine others is not."""
    base = [0.0] * 40
    near = [1.0] * 7 + base[7:]
    sides = {name: [scores(name, base)] for name in "ABCD"} | {"E": [scores("E", near)]}
    alone = compare({name: sides[name] for name in "AE"})
    assert alone[0].decided, "premise"
    found = compare(sides)
    assert not any(each.decided for each in found)
    assert "of so many comparisons" in found[3].verdict
    assert {*rank(found)[0].letters.values()} == {"a"}


def test_several_tasks_are_a_line_each_and_one_ranking():
    """Of two tasks the first is told apart, and the other is not."""
    sides = {
        name: [[record(gain, seed=n), replace(record(seed=9 + n), task="u")]]
        for n, (name, gain) in enumerate(
            {"long": 0.0, "short": 3.0, "last": 6.0}.items()
        )
    }
    said = as_text(compare(sides)).splitlines()
    [of_t] = [line.split() for line in said if line.startswith("  t ")]
    [of_u] = [line.split() for line in said if line.startswith("  u ")]
    assert (of_t[1], of_t[3:8:2]) == ("last", ["a", "c", "b"])
    assert (of_u[1], of_u[3:8:2]) == ("undecided", ["a", "a", "a"])
    places = [line.split() for line in said if re.match(r"  \d\. ", line)]
    assert places == [
        *(["1.", "last", "2", "0", "2"], ["2.", "short", "1", "1", "2"]),
        ["3.", "long", "0", "2", "2"],
    ]
    two = as_text(compare({name: sides[name] for name in ("last", "long")}))
    [line] = [line for line in two.splitlines() if line.startswith("  t ")]
    assert re.match(r"  t +last +-0\.0\d+ +0\.0\d+ +-0\S+ +-0\S+ +\S+ +\S+ +60", line)


def test_copies_of_a_text_are_one():
    def twice(made):
        again = [replace(answer, index=answer.index + 60) for answer in made.answers]
        return replace(made, answers=[*made.answers, *again])

    a, b = record(1.0), record(0.0, seed=1)
    [once] = compare({"A": [[a]], "B": [[b]]})
    [both] = compare({"A": [[twice(a)]], "B": [[twice(b)]]})
    assert both.difference.interval == pytest.approx(once.difference.interval)
    assert "120 texts in 60 clusters (text)" in as_text([both])


def test_a_column_is_a_side(capsys, tmp_path):
    path = tmp_path / "scores.csv"
    lines = [f"q{n},{n // 3},{n % 5},{n % 3 == 0:d},1" for n in range(45)]
    path.write_text("\n".join(["id,source,first,second,third", *lines]))
    columns = ["--columns", "first,second,third", "--better", "higher"]
    out = shown(capsys, str(path), "--cluster", "source", *columns)
    assert "15 clusters (source)" in out
    assert "scores: ranking" in out
    assert "column second" in out


MANY = ",".join(f"m{n}" for n in range(5000))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("id,a\n1,2\n", "expected a head of different names"),
        ("id,a,b,b\n1,2,3,4\n", "expected a head of different names"),
        ("id,a,c\n1,2,3\n", "it has no b"),
        ("id,a,b\n1,2,x\n", "row 2: b: expected a number, not 'x'"),
        ("id,a,b\n1,2,3\n1,2\n", "row 3: b: expected a number, not ''"),
        ("id,a,b\n", "a head and no rows"),
        ("bytes,a,b\n1.5,-5,-3\n", "bytes='1.5': expected a whole number"),
        (",a,b\n0,2,3\n", "column '': give it a name"),
        ("Bytes,a,b\n0,2,3\n", "column 'Bytes': write it as bytes"),
        ("bytes,a,b\n9,5,3\n", "Is this a loss? Then change its sign"),
        ("bytes,words,a,b\n9,3,-5,-3\n9,,-5,-3\n", "row 3: words is empty"),
        ("bytes,a,b\n0,-5,-3\n0,-5,-3\n", "have no bytes"),
    ],
)
def test_a_table_that_says_something_else_is_refused(table, said, refused, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(table)
    assert said in refused("compare", path, "--columns", "a,b", "--better", "higher")


def test_what_a_table_does_not_say_is_asked_for(refused, tmp_path):
    """Any column may be a trial's number, and any score a loss."""
    path = tmp_path / "scores.csv"
    path.write_text("id,trial,a_ppl,b_ppl\n1,1,9,8\n2,1,7,6\n")
    said = refused("compare", path)
    assert "say which columns are models (--columns trial,a_ppl,b_ppl)" in said
    assert "which scores are better (--better higher, or lower)" in said
    said = refused("compare", path, "--columns", "a_ppl,b_ppl")
    assert "--better higher" in said and "--columns trial" not in said
    said = refused("compare", path, "--columns", "a_ppl,b_ppl", "--better", "more")
    assert "higher, lower" in said
    path.write_text(f"{MANY}\n{','.join(['1'] * 5000)}\n")
    said = refused("compare", path, "--columns", MANY, "--better", "lower")
    assert f"5000 columns of models: at most {MOST_SIDES}" in said


def test_lower_scores_are_better_where_that_is_declared(capsys, tmp_path):
    path = tmp_path / "scores.csv"
    lines = [f"q{n},1,{5 + n % 3},{4 + n % 2}" for n in range(30)]
    path.write_text("\n".join(["id,trial,a_ppl,b_ppl", *lines]))
    columns = ["--columns", "a_ppl,b_ppl", "--better", "lower"]
    assert "b_ppl is better" in shown(capsys, str(path), *columns)


def test_passages_that_some_lack_are_clusters_of_the_others(capsys, tmp_path):
    path = tmp_path / "scores.csv"
    lines = [f"{n // 3 if n else ''},{n % 5},{n % 3 == 0:d}" for n in range(45)]
    path.write_text("\n".join(["cluster,first,second", *lines]))
    columns = ["--columns", "first,second", "--better", "higher"]
    out = shown(capsys, str(path), "--power", "5", "--metric", "score", *columns)
    assert "16 clusters (cluster)" in out
    power = out.partition("To decide 5 of score at 80% between first and second: ")[2]
    assert int(power.split()[0]) < 40, "of scores of 0 to 4, so not a hundredth of 5"


def test_cells_are_as_long_as_they_are(tmp_path):
    path = tmp_path / "scores.csv"
    long = "word " * 40_000
    path.write_text(f'bytes,a,b,text\n9,-5,-3,"a\nb\n\nc"\n\n9,-5,-3,"{long}"\n')
    read = read_table(path, ("a", "b"))["a"]
    assert [answer.words for answer in read[0].answers] == [3, 40_000]


def sides_of_table(path):
    return {n: [run] for n, run in read_table(path, ("a", "b")).items()}


def test_a_column_of_log_likelihoods_has_rates(tmp_path):
    path = tmp_path / "scores.csv"
    lines = [f"x{n},100,{-120 - n % 3},{-121.5 - n % 2}" for n in range(30)]
    path.write_text("\n".join(["id,bytes,a,b", *lines]))
    [found] = compare(
        {name: [run] for name, run in read_table(path, ("a", "b")).items()}
    )
    assert found.metric == "bits a byte"
    assert found.difference.value == pytest.approx(-0.01 / math.log(2))
    said = [
        f"{line},{text}" for line, text in zip(lines, ["a b", ""] * 15, strict=True)
    ]
    for head, table, words in (
        ("id,bytes,a,b,text", said, 30),
        ("id,bytes,a,b,words", [f"{line},7" for line in lines], 210),
    ):
        path.write_text("\n".join([head, *table]))
        [run] = read_table(path, ("a", "b"))["a"]
        assert run.units[["bytes", "words"]].sum().tolist() == [3000, words]
