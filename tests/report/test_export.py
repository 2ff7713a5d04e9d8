"""What is exported is valid by the schemas of those who receive it."""

import hashlib
import json
import math
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from markdown_it import MarkdownIt

from lm_latent_eval.cli import _parser, main
from lm_latent_eval.cli.estimate import scoring
from lm_latent_eval.estimators import Bound
from lm_latent_eval.report import numbers as report_numbers
from lm_latent_eval.report.export import every_eval_ever, hub
from lm_latent_eval.report.export.every_eval_ever import Evaluator
from lm_latent_eval.report.export.statement import Statement, command
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.metrics import TOO_LARGE
from lm_latent_eval.scoring.records import TASK
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from tests.report.test_compare import (
    SAMPLE,
    estimated,
    lm_eval_folder,
    questions,
    record,
    unjudged,
    write,
)
from tests.report.test_runs import generated, sample

SCHEMAS = Path(__file__).parents[1] / "reference" / "every_eval_ever"
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
SOURCE = Evaluator("us/model", "Us", "first_party")
SETTINGS = {
    "model": "latent_kglm",
    "lm_latent_eval": "0.1.0",
    "lm_eval": "0.4.13",
    "checkpoint": "abc",
    "estimator": "is",
    "num_samples": 100,
    "proposal": "adapted",
    "temperature": 1.0,
    "seed": 3,
    "unk": "spelled",
    "vocabulary": "v",
    "tokens_are": "words",
    "date": 1.7e9,
}
BENCHMARK = {"q": {"dataset_path": "nyu-mll/blimp", "dataset_name": "adjunct"}}


def statement_of(made):
    return Statement.of(Run.of(made))


def numbers(made):
    return report_numbers.numbers(Run.of(made))


def export_card(made, *where):
    return hub.export_card([*map(Run.of, made)], *where)


def export_results(made, *where):
    return hub.export_results([*map(Run.of, made)], *where)


def export_archive(made, *where):
    return every_eval_ever.export([*map(Run.of, made)], *where)


def result(kind="stochastic lower", **more):
    return record(-3.0, kind, settings=SETTINGS | more)


def answers(**more):
    return replace(questions([True] * 6 + [False] * 2), settings=SETTINGS | more)


def validated(path, schema):
    import jsonschema

    schema = json.loads((SCHEMAS / f"{schema}.schema.json").read_text())
    for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [""]:
        content = json.loads(line or path.read_text(), parse_constant=pytest.fail)
        jsonschema.Draft7Validator(schema).validate(content)


@pytest.mark.parametrize("kind", ["stochastic lower", "strict lower", "exact", "none"])
def test_the_archive_s_schemas_hold(tmp_path, kind):
    found = [result(kind), answers(configs=BENCHMARK)]
    paths = export_archive(found, SOURCE, tmp_path)
    assert len(paths) == 4
    for path in paths:
        inside = path.relative_to(tmp_path).as_posix()
        pattern = rf"data/lm_latent_eval/us/model/{UUID4}(_samples\.jsonl|\.json)"
        assert re.fullmatch(pattern, inside)
        samples = path.suffix == ".jsonl"
        validated(path, "instance_level_eval" if samples else "eval")


def archived(folder, found):
    """What is exported of a record of texts: all of it, and its rates by name."""
    [path, samples] = export_archive([found], SOURCE, folder)
    content = json.loads(path.read_text())
    results = content["evaluation_results"]
    named = {each["metric_config"]["metric_name"]: each for each in results}
    return content, named, samples


def test_the_archive_is_told_all_that_a_number_needs(tmp_path):
    content, results, samples = archived(tmp_path, result())
    rates = ("bits_per_byte", "byte_perplexity", "word_perplexity", "token_perplexity")
    assert {*results} == {*rates}
    expected, found = numbers(result())["bits_per_byte"], results["bits_per_byte"]
    parameters = found["metric_config"]["metric_parameters"]
    told = {"num_samples": 100, "proposal": "adapted", "seed": 3}
    assert parameters.items() >= told.items()
    assert parameters["bound"] == "stochastic upper bound of the true value"
    details = found["score_details"]
    assert details["score"] == expected.value
    interval = details["uncertainty"]["confidence_interval"]
    certified = expected.value + math.log(20) / 6000 / math.log(2)
    assert interval["upper"] == pytest.approx(certified)
    assert (interval["lower"], interval["confidence_level"]) == (0.0, 0.95)
    of_words = results["word_perplexity"]["score_details"]["uncertainty"]
    assert of_words["confidence_interval"]["lower"] == 1.0
    told = content["model_info"]["additional_details"]
    assert (told["deployment_type"], told["checkpoint"]) == ("self_deployed", "abc")
    detailed = content["detailed_evaluation_results"]
    assert detailed["total_rows"] == 4 * 60
    assert (tmp_path / detailed["file_path"]) == samples
    assert detailed["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    lines = map(json.loads, samples.read_text().splitlines())
    first = next(x for x in lines if x["evaluation_result_id"] == "t/bits_per_byte")
    assert first["evaluation_id"] == content["evaluation_id"]
    one = numbers(replace(result(), answers=result().answers[:1]))
    assert first["evaluation"]["score"] == pytest.approx(one["bits_per_byte"].value)


def test_questions_without_an_accuracy_are_no_wrong_ones(tmp_path):
    some = [
        replace(a, accuracy=None if a.index > 5 else 1.0) for a in answers().answers
    ]
    found = replace(answers(), answers=some)
    _, results, samples = archived(tmp_path, found)
    lines = samples.read_text().splitlines()
    scores = [json.loads(line)["evaluation"]["score"] for line in lines]
    details = results["acc"]["score_details"]
    assert scores == [1.0] * 6 and details["score"] == 1.0
    assert details["uncertainty"]["num_samples"] == 6
    questions = {answer.index for answer in some}
    assert details["details"]["instances_dropped"] == f"{len(questions) - 6}" != "0"


@pytest.mark.parametrize("stderr", [None, 0.2])
def test_the_archive_is_told_errors_that_something_has_checked(tmp_path, stderr):
    made = estimated(result(), stderr=stderr)
    expected = numbers(made)["bits_per_byte"]
    found = archived(tmp_path, made)[1]["bits_per_byte"]["score_details"]
    uncertainty, details = found["uncertainty"], found["details"]
    assert uncertainty["num_samples"] == 60
    assert float(details["draws_stderr"]) == expected.draws_stderr
    if stderr is None:
        assert "standard_error" not in uncertainty
        return
    error = uncertainty["standard_error"]
    assert expected.monte_carlo_stderr < expected.stderr, "premise: two errors"
    assert error["value"] == expected.stderr and "draws included" in error["method"]
    assert float(details["monte_carlo_stderr"]) == expected.monte_carlo_stderr


def test_benchmarks_of_the_hub_are_read_back(tmp_path):
    found = [result(), answers(configs=BENCHMARK)]
    [path] = export_results(found, tmp_path)
    assert path == tmp_path / ".eval_results" / "q.yaml"
    [entry] = parse_eval_result_entries(yaml.safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id) == ("nyu-mll/blimp", "adjunct")
    assert entry.value == 0.75
    for part in ("estimator=is", "num_samples=100", "bound: exact", "checkpoint abc"):
        assert part in entry.notes
    [path] = export_results([answers(configs=BENCHMARK)], tmp_path, "other")
    assert yaml.safe_load(path.read_text())[0]["dataset"]["task_id"] == "other"
    with pytest.raises(ValueError, match="no accuracy here"):
        export_results([result()], tmp_path)
    with pytest.raises(ValueError, match="of no data set of the hub"):
        export_results([answers()], tmp_path)


def test_no_bound_of_a_likelihood_is_one_of_an_accuracy(tmp_path):
    drawn = estimated(answers(), bound=Bound.STOCHASTIC_LOWER)
    _, results, _ = archived(tmp_path, drawn)
    archive = results["acc"]["metric_config"]["metric_parameters"]["bound"]
    path = export_card([drawn], tmp_path / "README.md", "us/model")
    [entry] = ModelCard.load(path).data.eval_results
    assert archive == entry.metric_args["bound"] == "none"
    assert "; bound: none; " in statement_of(drawn).note
    assert statement_of(answers()).bound_of("acc") == "exact"


def test_a_task_without_right_answers_leaves_the_others(tmp_path, caplog):
    without = replace(unjudged(), settings=SETTINGS | {"configs": BENCHMARK})
    both = [without, answers(configs=BENCHMARK)]
    [written] = export_results(both, tmp_path)
    assert written.name == "q.yaml"
    card = export_card(both, tmp_path / "README.md", "us/model")
    assert re.search(r"\| q +\| acc +\| +0\.75 \|", card.read_text(encoding="utf-8"))
    assert "unjudged has no number to export" in caplog.text
    with pytest.raises(ValueError, match="unjudged has no number to export"):
        export_card(both[:1], tmp_path / "other" / "README.md", "us/model")


RUN = {
    "run": {
        "model": "latent_kglm",
        "model_args": {"pretrained": "/home/me/kglm", "num_samples": 100},
        "limit": 60.0,
    },
    "transformers": "5.0.0",
    "torch": "2.9.0",
    "configs": {"t": {"metadata": {"text_file": "/home/me/a.txt", "version": 1}}},
}


def test_a_card_says_what_makes_the_numbers_again(tmp_path):
    path, found = tmp_path / "new" / "README.md", estimated(result(**RUN), stderr=0.2)
    with pytest.raises(ValueError, match=r"is a folder: name the README\.md in it"):
        export_card([found], tmp_path, "us/model")
    export_card([found], path, "us/model")
    card = ModelCard.load(path)
    assert (
        "lm_eval --model latent_kglm --model_args pretrained=kglm,num_samples=100 "
        '--tasks t --metadata \'{"text_file": "a.txt"}\' --limit 60\n' in card.text
    )
    assert "/home/me" not in card.text
    assert f"60 texts, digest {Run.of(found).texts_digest}" in card.text
    for version in ("lm_latent_eval 0.1.0", "lm_eval 0.4.13", "torch 2.9.0"):
        assert version in card.text
    assert "bits_per_byte" in {entry.metric_type for entry in card.data.eval_results}
    for entry in card.data.eval_results:
        number, args = numbers(found)[entry.metric_type], entry.metric_args
        assert entry.metric_value == number.value
        assert args["standard_error"] == number.stderr
        assert args["monte_carlo_standard_error"] == number.monte_carlo_stderr
        expected = {"num_texts": 60, "digest": Run.of(found).texts_digest}
        assert entry.dataset_args == expected


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tokens", TokensOptions("beam", 9, context_tokens=None)),
        ("mdm", MDMOptions(estimator="is")),
        ("mdm", MDMOptions(convention="llada")),
        ("mdm", MDMOptions(unmasking="confidence", threshold=0.5)),  # path
    ],
)
def test_a_command_asks_for_a_network_with_its_own_options(model, options):
    def settings(options):
        if model == "tokens":
            return asdict(options)
        chosen = options.chosen_for("bidirectional", None).chosen
        return {name: value for name, value in chosen.items() if name != "writing"}

    found = command(TASK, {"model": model} | settings(options))
    words = shlex.split(found.partition("--data TEXTS ")[2])
    given = _parser().parse_args(["estimate", "DIR", "--data", "TEXTS", *words])
    assert given.model == model
    assert settings(type(options).parse(scoring(given))) == settings(options)


def test_a_card_keeps_what_else_it_says_and_its_section_is_replaced(tmp_path):
    path = tmp_path / "README.md"
    estimates = replace(result(lm_eval=None, date=None), task="estimate")
    export_card([estimates], path, "us/model")
    before = ModelCard.load(path)
    command = "lm-latent-eval estimate DIRECTORY --data TEXTS --estimator is"
    assert command in before.text and "stochastic" in before.text
    path.write_text(path.read_text().replace("# us/model", "# us/model\n\nOur words."))
    theirs = ModelCard.load(path)
    about = {"dataset_name": "WikiText", "dataset_type": "wikitext"}
    foreign = replace(theirs.data.eval_results[0], **about, metric_args={"stride": 512})
    theirs.data.eval_results.append(foreign)
    theirs.save(path)
    export_card([result("exact")], path, "us/model")
    card = ModelCard.load(path)
    assert "Our words." in card.text and card.text.count("## Likelihoods") == 1
    assert "bound: exact" in card.text and "stochastic" not in card.text
    assert command not in card.text
    assert len(card.data.eval_results) == len(before.data.eval_results) + 1
    assert "WikiText" in {found.dataset_name for found in card.data.eval_results}


def test_rates_without_a_finite_value_are_left_out(tmp_path):
    """Texts without spaces are a word each, of a thousand nats."""
    long = [replace(answer, words=1, bytes=900) for answer in result("exact").answers]
    found = estimated(replace(result("exact"), answers=long), log_evidence=-900.0)
    assert numbers(found)["word_perplexity"].value == TOO_LARGE, "premise"
    export_card([found], tmp_path / "README.md", "us/model")
    export_archive([found], SOURCE, tmp_path / "eee")
    shown = (tmp_path / "README.md").read_text()
    assert "bits_per_byte" in shown and "word_perplexity" not in shown


@pytest.mark.parametrize("sha", ["", "0123abc"])
def test_models_of_others_are_exported_too(tmp_path, sha):
    samples = [SAMPLE, SAMPLE | {"doc_id": 1}]
    folder = lm_eval_folder(tmp_path / "hf", "t", samples, {}, sha=sha)
    results = json.loads((folder / "results_1.json").read_text())
    results |= {"chat_template": "{{ messages }}", "fewshot_as_multiturn": False}
    results |= {"system_instruction": "Be brief.", "n-samples": {"t": {"original": 3}}}
    seeds = {"random_seed": 0, "numpy_seed": None, "torch_seed": 5, "fewshot_seed": 7}
    results["config"] |= seeds
    results["configs"] = {"t": {"output_type": "multiple_choice", "num_fewshot": 0}}
    (folder / "results_1.json").write_text(json.dumps(results))
    card = tmp_path / "README.md"
    command = ["export", str(folder), "--to", "model-card", "--model-id", "us/gpt2"]
    assert main([*command, "--output", str(card)]) == 0
    said = card.read_text()
    asked = "lm_eval --model hf --model_args pretrained=gpt2 --tasks t --num_fewshot 0 "
    asked += "--apply_chat_template --fewshot_as_multiturn false "
    asked += "--system_instruction 'Be brief.' --samples '{\"t\": [0, 1]}' "
    assert f"{asked}--seed 0,None,5,7\n" in said
    assert f"checkpoint {sha or 'gpt2 (no digest'}" in said
    assert "word_perplexity" in said
    assert "token_perplexity" not in said
    command[3:4] = [
        "every-eval-ever",
        "--organization",
        "us",
        "--relationship",
        "other",
    ]
    assert main([*command, "--output", str(tmp_path / "archive")]) == 0
    [aggregate] = (tmp_path / "archive").rglob("*.json")
    [first, *_] = json.loads(aggregate.read_text())["evaluation_results"]
    details = first["score_details"]["details"]
    assert details["words"] == "10"
    assert "predicted_tokens" not in details, "nobody counted its own pieces"


HOSTILE = "<script>alert(1)</script> | <!-- /lm-latent-eval --> ![](http://a/b.png)"


def test_a_card_shows_what_tasks_and_settings_say(tmp_path):
    path = tmp_path / "README.md"
    found = replace(result(proposal=HOSTILE), task=f"{HOSTILE}\n# a")
    export_card([found], path, "us/model")
    once = path.read_text()
    html = MarkdownIt("commonmark").enable("table").render(ModelCard.load(path).text)
    html = re.sub("<!-- /?lm-latent-eval -->", "", html)
    for tag in ("<script", "<img", "<!--"):
        assert tag not in html
    assert html.count("<h1>") == 1, "the card's own"
    assert "alert(1)" in html and "<td" in html
    export_card([found], path, "us/model")
    assert path.read_text() == once, "its section ends where it did"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        *(
            (result(**{name: None}), f"does not say {name}")
            for name in ("checkpoint", "estimator", "seed")
        ),
        (
            replace(result(), answers=result().answers[:1]),
            "an error over texts takes at least two",
        ),
        (replace(result(), finished=False), "not finished"),
        (estimated(result(), bound=Bound.UNNORMALISED), "no number to export"),
    ],
)
def test_what_is_not_known_is_not_exported(found, message):
    statement_of(result("exact", seed=None))  # nothing is drawn
    with pytest.raises(ValueError, match=message):
        statement_of(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("every-eval-ever --model-id us/model", "needs --organization, which no res"),
        (
            "every-eval-ever --organization Us --relationship other --model-id model",
            "expected developer/model",
        ),
        (
            "every-eval-ever --organization Us --relationship other --model-id ../up",
            "expected developer/model",
        ),
        (
            "every-eval-ever --organization Us --relationship other --model-id us/m "
            "--collection ../../esc",
            "--collection ../../esc: expected a name, not a path",
        ),
        ("hf-eval-results", "no accuracy here"),
    ],
)
def test_the_command_says_what_it_lacks(tmp_path, refused, options, said):
    write(result(), tmp_path / "r.parquet")
    command = ["export", tmp_path / "r.parquet", "--output", tmp_path / "out", "--to"]
    assert said in refused(*command, *options.split())


def test_a_card_has_an_entry_a_task(tmp_path):
    """Tasks of one data set, and files of JSON, which lm-eval calls one alike."""
    configs = {"configs": {name: {"dataset_path": "json"} for name in "tuq"}}
    found = [
        result(**configs),
        replace(result(**configs), task="u"),
        answers(**configs),
    ]
    path = export_card(found, tmp_path / "README.md", "us/model")
    [model] = yaml.safe_load(path.read_text().split("---")[1])["model-index"]
    entries = {entry["dataset"]["name"]: entry for entry in model["results"]}
    assert [*entries] == ["t", "u", "q"]
    assert [each["type"] for each in entries["q"]["metrics"]] == ["acc"]
    assert entries["q"]["dataset"]["args"]["num_questions"] == 8
    text = ModelCard.load(path).text
    assert "| acc" not in text.partition("## Scores of questions")[0]
    assert text.count("| acc") == 1
    assert ModelCard.load(path).data.tags == ["latent-variable-model"]


def test_written_answers_are_carried_through(tmp_path, capsys):
    """Of lm-eval and of another program, with every metric; nothing drawn is said."""
    rows = [sample(n, float(n % 4 > 0)) for n in range(40)]
    folder = generated(tmp_path / "a", rows, metrics=("exact_match", "f1"))
    assert main(["recompute", folder]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"exact_match +0\.750 +0\.069 ", shown)
    assert re.search(r"f1 +0\.375 +0\.035 ", shown)
    card, archive = tmp_path / "README.md", tmp_path / "archive"
    command = ["export", folder, "--model-id", "us/gpt2", "--to"]
    assert main([*command, "model-card", "--output", str(card)]) == 0
    said = ModelCard.load(card)
    values = {each.metric_type: each.metric_value for each in said.data.eval_results}
    assert values == {"exact_match": 0.75, "f1": 0.375}
    assert said.data.tags is None and "## Likelihoods" not in said.text
    who = ["--organization", "us", "--relationship", "other"]
    assert main([*command, "every-eval-ever", "--output", str(archive), *who]) == 0
    for path in archive.rglob("*.json*"):
        samples = path.suffix == ".jsonl"
        validated(path, "instance_level_eval" if samples else "eval")
    for path in archive.rglob("*.jsonl"):
        assert len(path.read_text().splitlines()) == 40


def test_a_task_that_left_no_samples_is_named(tmp_path, caplog):
    folder = Path(generated(tmp_path / "a", [sample(n, 1.0) for n in range(3)]))
    path = folder / "results_1.json"
    content = json.loads(path.read_text())
    content["configs"]["written"] = {"output_type": "generate_until"}
    path.write_text(json.dumps(content))
    assert main(["recompute", str(folder)]) == 0
    assert "written left out" in caplog.text and "--log_samples" in caplog.text
