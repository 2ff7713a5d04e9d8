"""Every module of ``metrics/`` as the hub and its users have it, and their options."""

import doctest
import importlib.util
import math
import multiprocessing
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import evaluate
import pytest
import yaml

import lm_latent_eval
from lm_latent_eval import metrics
from lm_latent_eval.folders import METRICS
from tests.metrics.test_numbers import SCORES, never

PROJECT = Path(__file__).parents[2]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.fixture(params=METRICS)
def name(request):
    return request.param


@pytest.fixture
def load(tmp_path):
    """Load a metric that keeps its rows in a folder of its own."""
    return partial(evaluate.load, cache_dir=str(tmp_path))


def source(path):
    """Import a file as it stands, without evaluate's copy of it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(name):
    """Return inputs and results of a metric's test cases."""
    found = source(PROJECT / "metrics" / name / "tests.py").test_cases
    return [(case, case.pop("result")) for case in found]


def agrees(found, expected):
    """Whether what is expected is there, numbers to rounding."""
    if isinstance(expected, dict):
        return all(k in found and agrees(found[k], v) for k, v in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(agrees, found, expected))
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


def test_no_module_is_left_out():
    assert sorted(path.name for path in (PROJECT / "metrics").iterdir()) == [*METRICS]


def test_numbers_by_hand_and_options_that_are_none(name, load):
    """Of the module, also row by row, and of the plain function; errors leave it be."""
    plain, metric = getattr(metrics, name), load(lm_latent_eval.metric_path(name))
    for inputs, result in cases(name):
        with pytest.raises(ValueError, match="missing: "):
            metric.compute()
        with pytest.raises(ValueError, match=r"missing|needs"):
            metric.compute(**dict([*inputs.items()][:1]))
        with pytest.raises(ValueError, match="input='log_w': expected one of"):
            metric.compute(**inputs, log_w=1)
        found = metric.compute(**inputs)
        assert agrees(found, result), found
        assert plain(**inputs) == found
        metric.add_batch(**inputs)  # as rows that come one after the other
        assert agrees(metric.compute(), result)
        assert plain(**dict.fromkeys(LEFT_OUT[name]) | inputs) == found
    with pytest.raises(ValueError, match="input='nothing': expected one of"):
        plain(nothing=1)


LEFT_OUT = {
    "contrastive_entropy": ["levels", "baseline", "texts"],
    "distortion_error": ["bins", "stderr"],
    "importance_perplexity": ["level", "confidence", "log_increments"],
    "information_rate": ["stderr", "texts", "bits_per_word"],
}
"""Options that may be None."""


# -- rows that come one after the other, in one process and in two -------------------

ROWS_OF = {
    "contrastive_entropy": (
        {**SCORES, "stderrs": [0.1, 0.2, 0.3]},
        [{}, {"num_words"}, {"stderrs"}, {"num_words", "stderrs"}],
    ),
    "distortion_error": (
        {
            "true_log_p": [-1.0] * 15 + [-2.0] * 15,  # bins of more than ten
            "model_log_p": [-2.5 - 0.1 * n for n in range(1, 31)],
            "stderr": [0.01 * n for n in range(1, 31)],
        },
        [{}, {"stderr"}],
    ),
    "importance_perplexity": (
        {"log_weights": [[-1.0, -2.0], [-3.0, -2.5]], "num_tokens": [2, 3]},
        [{}],
    ),
    "information_rate": (
        {"log_likelihoods": [-1.0, -2.5], "num_words": [3, 4], "num_bytes": [12, 17]},
        [{}, {"num_words"}, {"num_bytes"}],
    ),
}
"""Columns of each metric, and which of them may be left out together."""


def without(name):
    """Yield the columns of a metric, whole and without what is optional."""
    whole, optional = ROWS_OF[name]
    for left_out in optional:
        yield {column: v for column, v in whole.items() if column not in left_out}


def rows_of(columns):
    """Yield the arguments of ``add``, a row each."""
    for n in range(len(next(iter(columns.values())))):
        row = {name: v[n] for name, v in columns.items() if name != "distorted"}
        if "distorted" in columns:
            row["distorted"] = {
                level: [copies[n] for copies in scores]
                for level, scores in columns["distorted"].items()
            }
        yield row


def test_rows_that_are_added_are_those_that_are_computed(name, load):
    plain, metric = getattr(metrics, name), load(lm_latent_eval.metric_path(name))
    for columns in without(name):
        expected = plain(**columns)
        metric.add_batch(**columns)
        assert metric.compute() == expected
        for row in rows_of(columns):
            metric.add(**row)
        assert metric.compute() == expected


def test_one_score_a_level_is_one_copy(load):
    metric = load(lm_latent_eval.metric_path("contrastive_entropy"))
    for clean, copy in ((-20.0, -24.0), (-30.0, -36.0)):
        metric.add(log_scores=clean, distorted={0.1: copy})
    expected = {"log_scores": [-20.0, -30.0], "distorted": {0.1: [-24.0, -36.0]}}
    assert metric.compute() == metrics.contrastive_entropy(**expected)


def test_rows_of_different_levels_are_refused(load):
    metric = load(lm_latent_eval.metric_path("contrastive_entropy"))
    metric.add(log_scores=-20.0, distorted={0.1: -24.0})
    metric.add(log_scores=-30.0, distorted={0.3: -36.0})
    message = r"rows have scores of different levels, \[\[0.1\], \[0.3\]\]"
    with pytest.raises(ValueError, match=message):
        metric.compute()


def test_what_is_no_column_is_for_compute(name, load):
    metric = load(lm_latent_eval.metric_path(name))
    options = {**dict.fromkeys(LEFT_OUT[name], 1), "texts": ["a b"]}
    for option in options.keys() - ROWS_OF[name][0].keys() - {"log_increments"}:
        with pytest.raises(ValueError, match=f"column='{option}': expected one of"):
            metric.add_batch(**{option: options[option]})
    assert len(metric) == 0


def computed(name, folder, process):
    """Add every second row in one of two processes; compute."""
    metric = evaluate.load(
        lm_latent_eval.metric_path(name),
        cache_dir=folder,
        num_process=2,
        process_id=process,
        experiment_id="two",
    )
    for row in [*rows_of(ROWS_OF[name][0])][process::2]:
        metric.add(**row)
    return metric.compute()


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_two_processes_compute_what_one_does(name, tmp_path):
    fork = multiprocessing.get_context("fork")
    other = fork.Process(target=computed, args=(name, str(tmp_path), 1))
    other.start()
    found = computed(name, str(tmp_path), 0)
    other.join()
    assert other.exitcode == 0
    columns = ROWS_OF[name][0]
    order = range(len(next(iter(columns.values()))))
    order = [*order[::2], *order[1::2]]  # those of the first process come first
    rearranged = {
        column: [values[n] for n in order]
        for column, values in columns.items()
        if column != "distorted"
    }
    if "distorted" in columns:
        rearranged["distorted"] = {
            level: [[copies[n] for n in order] for copies in scores]
            for level, scores in columns["distorted"].items()
        }
    assert found == getattr(metrics, name)(**rearranged)


# -- bad input -----------------------------------------------------------------------


def of_texts(texts, scorer=never, **more):
    """Return what turns scores into texts that are to be scored."""
    how = {"log_scores": None, "distorted": None, "levels": [0.1], "replicates": 1}
    return {**how, "texts": texts, "scorer": scorer, **more}


ROWS = {"true_log_p": [-1.0] * 11, "model_log_p": [-2.0] * 11, "resamples": 10}
NO_ROWS = {"log_weights": None, "num_tokens": None}
REFUSED = {
    "contrastive_entropy": (
        {"log_scores": [-1.0, -2.0], "distorted": {0.1: [-2.0, -4.0]}},
        [
            ({"distorted": {0.1: [-2.0], 0.3: [-2.0, -3.0]}}, "every level needs as"),
            ({"distorted": [[[-2]], [[-2]]]}, r"3 lists, .* \[0.1, 0.3, 0.5\]"),
            ({"log_scores": [], "distorted": {0.1: []}}, "every level needs as"),
            ({"log_scores": [], "distorted": []}, "log_scores is empty"),
            ({"levels": [0.2]}, r"levels are \[0.2\], and distorted has .* \[0.1\]"),
            ({"distorted": {"low": [-2.0, -4.0]}}, "expected levels as 0.1"),
            ({"num_words": [3, 0]}, r"num_words\[1\] is 0; expected .* at least 1"),
            ({"num_words": 7}, "num_words=7: expected a list"),
            ({"log_scores": [None, -2.0]}, r"log_scores\[0\] is missing"),
            ({"distorted": {0.1: [-2.0, None]}}, r"distorted\[0.1\]\[1\] is missing"),
            ({"distorted": [[[-2]], [[None]]], "levels": [1]}, r"\[0\]\[0\] is miss"),
            ({"distorted": [[[-2]] * 2] * 2, "levels": [3, 3]}, "3: .* each once"),
            ({"against": {"ratio": {0.1: 1.0}}}, "another model on the same text"),
            ({"texts": ["a"]}, "missing: scorer"),
            ({"texts": ["a"], "scorer": len}, "leave out distorted, log_scores"),
            # A text without words would count as a sentence that no noise can touch.
            (of_texts(["a bb ccc", ""]), r"texts\[1\] is .* no word to distort"),
            (of_texts(["a bb ccc", " \n"]), r"texts\[1\] is .* no word to distort"),
            (of_texts(["a b"], baseline=0.2), r"0.2 is no level; .* \[0.1\]"),
            (of_texts([]), "there must be texts"),
            (of_texts(["a b"], replicates="few"), "replicates='few': expected a whole"),
            (of_texts("a"), "not one string"),
            (of_texts(["a b", None]), r"texts\[1\] is None: expected a string"),
            (of_texts(["b a"], lambda _: [1.0]), "1 scores of 2 texts"),
            (of_texts(["b a"], lambda _: [1.0, math.nan]), "gave nan for"),
            ({"stderrs": [1.0]}, "2 distorted, 1 stderrs"),
            ({"stderrs": [1.0, -1.0]}, "expected 2 numbers of at least 0"),
            ({"stderrs": [math.nan] * 2}, "expected 2 numbers of at least 0"),
        ],
    ),
    "distortion_error": (
        ROWS,
        [
            ({"model_log_p": [-2.0] * 10 + [-math.inf]}, r"model_log_p\[10\] is -inf"),
            ({"stderr": [0.1] * 10 + [None]}, r"stderr\[10\] is missing"),
            ({"true_log_p": -1.0}, "true_log_p=-1.0: expected a list"),
        ],
    ),
    "importance_perplexity": (
        {"log_weights": [[-1.0, -2.0]], "num_tokens": [2]},
        [
            ({"log_weights": [[-math.inf]]}, "input 0: the proposal misses"),
            ({"num_tokens": [1.5]}, r"num_tokens\[0\] is 1.5; expected a whole number"),
            ({"num_tokens": [None]}, r"num_tokens\[0\] is missing"),
            ({"log_weights": [[-1.0, None]]}, r"log_weights\[0\]\[1\] is missing"),
            ({"level": "corpus"}, "level must be instance or token"),
            ({"log_increments": [[[0.0]]]}, "log_increments replace"),
            ({**NO_ROWS, "log_increments": [[[None]]]}, r"\[0\]\[0\]\[0\] is missing"),
            ({**NO_ROWS, "log_increments": [[[-1], [-1, -1]]]}, r"\[0\]: every filter"),
            # Weights that are no probabilities.
            ({"log_weights": [[-3.0], [5.0]], "num_tokens": [1] * 2}, "1: .*log p ="),
            ({"log_weights": [[0.01, 0.01]]}, "input 0: .*log p = .* ab"),
        ],
    ),
    "information_rate": (
        {"log_likelihoods": [-1.0, -2.0], "num_words": [3, 4]},
        [
            ({"log_likelihoods": [], "num_words": []}, "log_likelihoods is empty"),
            ({"log_likelihoods": [-3.0, None]}, r"log_likelihoods\[1\] is missing"),
            ({"num_words": [3, 4.5]}, r"num_words\[1\] is 4.5; expected a whole num"),
            ({"num_words": None}, "missing: one of num_tokens"),
            ({"bits_per_word": 3.0}, "say the same twice"),
            ({"log_likelihoods": None, "bits_per_byte": 3.0}, "missing: num_bytes"),
            (
                {"log_likelihoods": None, "bits_per_word": 3, "num_words": [4, None]},
                r"num_words\[1\] is missing",
            ),
            ({"texts": ["a", "b"]}, "leave out num_words"),
            ({"texts": ["a"], "num_words": None}, "1 texts, but 2 log_likelihoods"),
            ({"texts": "to be", "num_words": None}, "not one string"),
            ({"texts": ["a", math.nan], "num_words": None}, r"texts\[1\] is nan: ex"),
            ({"num_words": [5, 5, 5]}, "2 log_likelihoods, 3 num_words"),
        ],
    ),
}


def test_bad_input_names_itself(name, monkeypatch):
    """Of the plain function, which needs no ``evaluate``; modules call the same."""
    monkeypatch.setitem(sys.modules, "evaluate", None)  # importing it would fail
    plain, (ok, cases) = getattr(metrics, name), REFUSED[name]
    plain(**ok)
    for changed, message in cases:
        given = {k: v for k, v in {**ok, **changed}.items() if v is not None}
        with pytest.raises((TypeError, ValueError), match=message):
            plain(**given)


def test_scores_without_words_have_rates_per_sentence():
    expected = metrics.contrastive_entropy(**SCORES)
    inputs = {name: v for name, v in SCORES.items() if name != "num_words"}
    found = metrics.contrastive_entropy(**inputs, baseline=0.5)
    assert found["num_words"] is None
    assert not [name for name in found if "per_word" in name]
    assert found["nats_per_sentence"] == expected["nats_per_sentence"]
    assert found["ratio"] == pytest.approx({0.1: 10.5 / 39, 0.5: 1})


def test_arithmetic_on_given_scores_imports_what_it_needs():
    """No network, no tokenizer: what scores texts is imported when it scores."""
    code = (
        "import sys; from lm_latent_eval import metrics; "
        "metrics.information_rate(log_likelihoods=-1.0, num_words=2); "
        "metrics.contrastive_entropy(log_scores=[-1.0], distorted={0.1: [-2.0]}); "
        "new = {name.split('.')[1] for name in sys.modules "
        "if name.startswith('lm_latent_eval.')}; "
        "print(*sorted(new)); "
        "assert not {'transformers', 'datasets', 'evaluate'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unneeded = {"inference", "models", "networks", "scoring", "text", "wrappers"}
    assert not unneeded & {*done.stdout.split()}


def test_examples_of_the_card_and_the_docstring(name):
    folder = PROJECT / "metrics" / name
    card = doctest.testfile(
        str(folder / "README.md"), module_relative=False, optionflags=FLAGS
    )
    assert card.attempted > 3 and card.failed == 0

    inputs = source(folder / f"{name}.py")._KWARGS_DESCRIPTION
    test = doctest.DocTestParser().get_doctest(inputs, {}, name, None, 0)
    usage = doctest.DocTestRunner(optionflags=FLAGS).run(test)
    assert usage.attempted > 3 and usage.failed == 0


def test_the_hub_shows_it_as_a_metric_with_a_widget(name, monkeypatch):
    """The widget itself needs gradio."""
    folder, launched = PROJECT / "metrics" / name, []
    card = (folder / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)[1])
    assert front["tags"] == ["evaluate", "metric"]
    assert front["title"].lower().replace(" ", "_") == name
    assert (front["sdk"], front["app_file"]) == ("gradio", "app.py")
    required = (folder / "requirements.txt").read_text(encoding="utf-8").split()
    assert any(line.startswith("lm-latent-eval") for line in required)
    for line in (folder / f"{name}.py").read_text(encoding="utf-8").splitlines():
        assert not re.match(r"import .*,", line), "evaluate reads one import a line"
    monkeypatch.setattr("evaluate.utils.launch_gradio_widget", launched.append)
    source(folder / "app.py")
    assert [metric.name for metric in launched] == [name]
