"""Every module of ``metrics/`` as the hub and its users have it, and their options."""

import doctest
import importlib.util
import math
import re
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
            ({"stderrs": [1.0]}, "expected 2 numbers of at least 0"),
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
