"""The explanation of a run."""

import json
import os
from dataclasses import replace

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.report.explain import MEANING, explain
from tests.conftest import PROJECT
from tests.report.test_compare import estimated, questions, record
from tests.report.test_compare import write as write_record
from tests.report.test_runs import generated, sample

CONFIG = {
    "model": "latent_kglm",
    "checkpoint_digest": "abc",
    "latent_eval": {
        "estimator": "is",
        "num_samples": 100,
        "histories_per_request": [100, 2000],
        "proposal": "peeking",
        "temperature": 1.1,
        "seed": 3,
        "unk": "closed",
        "vocabulary": "10 words to utter, 2 more to copy",
        "mass": "sub-normalised",
        "scored_as": "documents",
    },
}


def write(folder, config, results):
    folder.mkdir(exist_ok=True)
    content = {"config": config, "results": results}
    (folder / "results_2026.json").write_text(json.dumps(content))


def explained(folder, estimator, values, model="latent_kglm"):
    """Explain numbers of one task by an estimator of 100 samples."""
    ours = {**CONFIG["latent_eval"], "estimator": estimator}
    ours["bound_of_log_likelihood"] = {str(estimator_class(estimator).bound): 9}
    ours["default_proposal"] = "adapted"
    write(folder, {**CONFIG, "model": model, "latent_eval": ours}, {"t": values})
    return " ".join(explain(folder).split())


def test_names_in_files_command_no_terminal(tmp_path):
    odd = "\x1b[2J\x07\u202e"
    ours = CONFIG["latent_eval"] | {"vocabulary": odd, "estimator": odd}
    config = {"model": odd, "checkpoint_digest": odd, "latent_eval": ours}
    write(tmp_path, config, {odd: {"bits_per_byte,none": odd}})
    shown = explain(tmp_path)
    assert all(c.isprintable() for line in shown.split("\n") for c in line)


def test_the_last_run_is_told_by_its_name(tmp_path):
    """Files of a copy are as old as it is."""
    for hour, bits, age in ((7, 1.5, 10), (9, 2.5, 9)):
        write(tmp_path, CONFIG, {"t": {"bits_per_byte,none": bits}})
        path = tmp_path / f"results_2026-11-27T{hour:02}-00-00.json"
        (tmp_path / "results_2026.json").rename(path)
        os.utime(path, (age, age))
    assert "bits_per_byte = 2.5" in explain(tmp_path)


def test_it_says_how_and_what(tmp_path, capsys):
    results = {
        "token_perplexity,none": 12.345678,
        "token_perplexity_stderr,none": 0.0123,
        "byte_perplexity,none": "refused: 3 words not spelled",
        "bits_per_byte,none": 1.5,
        "bits_per_byte_stderr,none": "N/A",
    }
    write(tmp_path, CONFIG, {"t": results})
    assert main(["explain", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "at temperature 1.1, seed 3; K = 100, 100 to 2,000 histories a text",
        "the option seed (3) alone moves them: lm_eval's --seed does not",
        "sub-normalised",
        "cost p(unknown) as one class",
        "byte_perplexity: refused: 3 words not spelled.",
        "token_perplexity = 12.346 ± 0.012:",
        "bits_per_byte = 1.5000:",
    ):
        assert part in text
    assert "word_perplexity" not in text
    ours = CONFIG["latent_eval"] | {"tokens_are": "known words"}
    write(tmp_path, CONFIG | {"latent_eval": ours}, {"t": results})
    assert "Unknown words are left out" in explain(tmp_path)


@pytest.mark.parametrize(
    ("precision", "nats"),
    [("float32", None), ("float16", "up to 0.01"), ("bfloat16", "0.02 to 0.3")],
)
def test_rounding_to_16_bits_is_told(tmp_path, precision, nats):
    ours = CONFIG["latent_eval"] | {"computed_in": f"torch.{precision}"}
    write(tmp_path, CONFIG | {"latent_eval": ours}, {"t": {}})
    said = " ".join(explain(tmp_path).split())
    assert ("The network computed" in said) == (nats is not None)
    assert nats is None or (f"computed in {precision}: " in said and nats in said)


DRAWN = {
    "on average: more samples lower it",
    "12.00 ± 0.50",
    "95 %",
    "be far too small",
}
FOUND = {"more samples lower it, as a rule", "The same, as nothing is drawn"}
EXACT = {"It is exact: nothing is drawn", "The same, as nothing is drawn"}


@pytest.mark.parametrize(
    ("estimator", "error", "said"),
    [("is", 0.5, DRAWN), ("beam", 0.0, FOUND), ("exact", 0.0, EXACT)],
)
def test_only_what_is_drawn_gets_better_with_samples(tmp_path, estimator, error, said):
    names = ("token_perplexity", "corpus_token_perplexity")
    values = {f"{name},none": 12.0 for name in (*names, "certified_token_perplexity")}
    values |= {f"{name}_stderr,none": error for name in names}
    values["token_perplexity_draws_error,none"] = error
    text = explained(tmp_path, estimator, values)
    assert {part for part in DRAWN | FOUND | EXACT if part in text} == said
    assert "draw decides" not in text, "nobody asked for that metric"


@pytest.mark.parametrize(("certified", "said"), [(12.0, True), ("N/A", False)])
def test_a_corpus_is_bounded_if_all_of_its_texts_are(tmp_path, certified, said):
    """Counts are of continuations, too, so none among them says nothing."""
    values = {"token_perplexity,none": 12.0}
    values["certified_token_perplexity,none"] = certified
    counted = {"strict lower": 2, "none": 1}
    ours = CONFIG["latent_eval"] | {"bound_of_log_likelihood": counted}
    write(tmp_path, CONFIG | {"latent_eval": ours}, {"t": values})
    text = " ".join(explain(tmp_path).split())
    assert ("An upper bound of the true perplexity" in text) is said


def with_errors(unknown, error, over_texts=0.2):
    """Numbers of a corpus some of whose texts have no error."""
    return {
        "token_perplexity,none": 12.0,
        "token_perplexity_stderr,none": over_texts,
        "token_perplexity_monte_carlo_error,none": error,
        "token_perplexity_draws_error,none": 0.01,
        "texts_without_monte_carlo_error,none": unknown,
    }


@pytest.mark.parametrize(
    ("estimator", "values", "advised"),
    [
        ("is", with_errors(7, "N/A: 7 of 9 texts", "N/A"), "estimator=auto searches"),
        (
            "beam",
            with_errors(9, "N/A: 9 of 9 texts", "N/A"),
            "auto adds what it leaves",
        ),
        ("auto", with_errors(2, "N/A: 2 of 9 texts", "N/A"), "num_samples=400 would"),
        ("auto", with_errors("3 (4 of 9 texts)", "N/A"), "more of 3 texts"),
        ("is", with_errors("0.0000 (4 of 9 texts)", 0.03), "what counts is more texts"),
        ("auto", with_errors(0, 0.1), "About num_samples=625 would make the Monte"),
        ("auto", with_errors(0, 0.03), "what counts is more texts"),
    ],
)
def test_it_says_what_would_help(tmp_path, estimator, values, advised):
    """0.1 is half of 0.2: 2.5 times as large as a fifth, so 2.5^2 times as many."""
    text = explained(tmp_path, estimator, values)
    assert advised in text
    error = values["token_perplexity_monte_carlo_error,none"]
    assert ("token_perplexity_monte_carlo_error: N/A" in text) == isinstance(error, str)
    unknown = str(values["texts_without_monte_carlo_error,none"])
    assert ("proposal=adapted, the model's own" in text) == (unknown[0] != "0")


@pytest.mark.parametrize("estimator", ["is", "beam"])
def test_no_estimator_is_advised_that_a_model_lacks(tmp_path, estimator):
    values = with_errors(9, "N/A: 9 of 9 texts", "N/A")
    advised = {"latent_tokens": "dpf", "latent_lstm": None, "latent_mixture": None}
    for model, name in advised.items():
        text = explained(tmp_path, estimator, values, model)
        assert "Nothing has checked" in text or "How far this bound is" in text
        assert (f"estimator={name}" in text) is (name is not None)
        assert "estimator=auto" not in text


def test_every_metric_has_a_meaning():
    from lm_latent_eval.harness.perplexity import COMPLETION
    from lm_latent_eval.scoring.metrics import METRICS

    metrics = METRICS | COMPLETION
    assert {m for m in metrics if not m.endswith("_stderr")} <= MEANING.keys()


def test_other_models_and_no_results(tmp_path, refused):
    write(tmp_path, {"model": "hf"}, {})
    assert "hf is not one of our models" in explain(tmp_path)
    (tmp_path / "results_2026.json").write_text('{"config": 3, "results": {}}')
    said = refused("explain", tmp_path)
    assert "results_2026.json holds no results of lm_eval" in said
    assert "nothing does not exist" in refused("explain", tmp_path / "nothing")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "model is a model, and has no results" in refused(
        "explain", tmp_path / "model"
    )
    (tmp_path / "empty").mkdir()
    assert "--output_path" in refused("explain", tmp_path / "empty")


def of_stock_metrics(folder, made, printed):
    """Results of a task of lm-eval, with our record beside them."""
    ours = {**CONFIG["latent_eval"], "records": {made.task: "record_0.parquet"}}
    folder.mkdir(exist_ok=True)
    write(folder, CONFIG | {"latent_eval": ours}, {made.task: printed})
    write_record(made, folder / "record_0.parquet")
    return " ".join(explain(folder).split())


def test_ties_are_shared_where_lm_eval_counts_the_first(tmp_path):
    asked = questions([True] * 4)
    tied = [replace(each, tied=True, accuracy=0.5) for each in asked.answers]
    said = of_stock_metrics(tmp_path, replace(asked, answers=tied), {"acc,none": 1.0})
    assert "acc = 0.5000 ± 0:" in said and "questions_tied = 4" in said


def test_stock_metrics_have_the_bound_and_the_error_of_the_record(tmp_path):
    drawn = estimated(record(kind="stochastic lower"), stderr=0.2)
    printed = {"word_perplexity,none": 410.0, "word_perplexity_stderr,none": 30.0}
    said = of_stock_metrics(tmp_path, drawn, printed)
    assert "An upper bound of the true perplexity on average" in said
    assert "token_perplexity_monte_carlo_error = " in said


def test_generated_answers_and_other_programs_have_their_own_scores(tmp_path):
    generated(tmp_path / "a", [sample(0, 1.0)])
    path = next((tmp_path / "a").glob("results_*"))
    content = json.loads(path.read_text())
    values = {"exact_match,strict": 0.4, "exact_match_stderr,strict": 0.05}
    path.write_text(json.dumps(content | {"results": {"said": values}}))
    said = " ".join(explain(tmp_path / "a").split())
    assert "exact_match (filter strict) = 0.400 ± 0.050: the task's own" in said
    said = explain(PROJECT / "tests/reference/runs/inspect_good.json")
    assert "match = 0.800 ± 0.067" in said and "lm_eval" not in said
