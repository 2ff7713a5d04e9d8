"""Metrics of the tasks on numbers worked out by hand, and those of topic models."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch

import lm_latent_eval
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.harness import perplexity
from lm_latent_eval.harness.answers import ScoredFloat
from lm_latent_eval.harness.perplexity import (
    CompletionTask,
    KnownWordsTask,
    OfHalves,
    OfTexts,
    PerplexityTask,
    halves,
)
from lm_latent_eval.models.lda.training import TopicTables
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import METRICS
from tests.stock_tasks import evaluated

# Two documents of 3 and 2 words, 10 and 5 bytes, 4 and 3 predicted tokens; two draws
# each, with weights 1/4 and 3/4, then 1/8 and 1/8.
TEXTS = ("aaa bbb cc", "dd ee")
WEIGHTS = ((1 / 4, 3 / 4), (1 / 8, 1 / 8))
TOKENS = (4, 3)

P = (1 / 2) * (1 / 8)
"""The mean weights' product."""
SE = math.sqrt(1 / 16 / 2) / (1 / 2)
"""sqrt(variance of a weight / 2) / mean weight, of the first; the second has none."""
PRODUCTS = (1 / 32, 3 / 32)
"""Of the first draws and of the second draws."""


def answer(text, estimate, stream=""):
    return Answer(0, estimate, stream).about(text)


def answers(make, weights, streams=("a", "b")):
    found = []
    for text, w, t, stream in zip(TEXTS, weights, TOKENS, streams, strict=True):
        log_w = torch.tensor(w, dtype=torch.float64).log()
        found.append(answer(text, make(log_w, num_tokens=t), stream))
    return found


def sampled(weights=WEIGHTS, **more):
    return answers(Estimate.from_log_weights, weights, **more)


def plain():
    values = math.log(1 / 2), math.log(1 / 8)
    return [*map(Answer.exact, values, TEXTS)]


def beams():
    return answers(Estimate.from_beam, [(a / 2, b / 2) for a, b in WEIGHTS])


DRAWN = math.hypot(SE, SE**2 / 2)
"""The error of the sum, and the bias of its logarithms beside it."""
BYTES = (10, 5)


def over_texts(units):
    """Of two rates, whose standard deviation is their difference over sqrt(2)."""
    one, other = (math.log(2) / units[0], math.log(8) / units[1])
    return abs(one - other) / math.sqrt(2) * math.hypot(*units) / sum(units)


SAMPLED = {
    "word_perplexity": P ** (-1 / 5),
    "word_perplexity_stderr": "N/A",  # nothing has checked the draws
    "byte_perplexity": P ** (-1 / 15),
    "byte_perplexity_stderr": "N/A",
    "bits_per_byte": 4 / 15,  # P is 2^-4
    "bits_per_byte_stderr": "N/A",
    "token_perplexity": P ** (-1 / 7),
    "token_perplexity_stderr": "N/A",
    "token_perplexity_monte_carlo_error": "N/A: 2 of 2 texts",
    "token_perplexity_draws_error": P ** (-1 / 7) * DRAWN / 7,
    "texts_without_monte_carlo_error": 2,
    "token_perplexity_at_least": "N/A",
    "corpus_token_perplexity": (sum(PRODUCTS) / 2) ** (-1 / 7),
    "corpus_token_perplexity_stderr": "N/A",
    "certified_token_perplexity": (P * 0.05) ** (-1 / 7),
    "effective_samples_median": (1.6 + 2) / 2,  # (1/4 + 3/4)^2 / (1/16 + 9/16) = 1.6
    "effective_samples_minimum": 1.6,
    "effective_samples_corpus": 1.6,
    "share_pareto_k_above_0.7": "N/A",  # two draws say nothing of a tail
}

PLAIN = SAMPLED | {
    "word_perplexity_stderr": P ** (-1 / 5) * over_texts((3, 2)),
    "byte_perplexity_stderr": P ** (-1 / 15) * over_texts(BYTES),
    "bits_per_byte_stderr": over_texts(BYTES) / math.log(2),
    # No tokens are told: words count.
    "token_perplexity": P ** (-1 / 5),
    "token_perplexity_stderr": P ** (-1 / 5) * over_texts((3, 2)),
    "token_perplexity_monte_carlo_error": 0.0,
    "token_perplexity_draws_error": 0.0,
    "texts_without_monte_carlo_error": 0,
    "corpus_token_perplexity": P ** (-1 / 5),
    "corpus_token_perplexity_stderr": P ** (-1 / 5) * over_texts((3, 2)),
    "certified_token_perplexity": P ** (-1 / 5),  # nothing is drawn
    "effective_samples_median": "N/A",
    "effective_samples_minimum": "N/A",
    "effective_samples_corpus": "N/A",
    "share_pareto_k_above_0.7": "N/A",
}

BEAMS = PLAIN | {
    **{name: "N/A" for name in PLAIN if name.endswith("_stderr")},
    "token_perplexity_monte_carlo_error": "N/A: 2 of 2 texts",
    "texts_without_monte_carlo_error": 2,
    "token_perplexity": P ** (-1 / 7),
    "corpus_token_perplexity": P ** (-1 / 7),
    "certified_token_perplexity": P ** (-1 / 7),  # a strict bound needs no luck
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_by_hand(name):
    """And what its terms in the log of samples, plain JSON, give of one document."""
    for items, expected in ((sampled(), SAMPLED), (plain(), PLAIN), (beams(), BEAMS)):
        found, wanted = METRICS[name](items), expected[name]
        if isinstance(wanted, str):
            assert found == wanted
        else:
            assert found == pytest.approx(wanted, rel=1e-12)
    term = perplexity.Term.of(name, items[0])
    json.loads(json.dumps(term), parse_constant=pytest.fail)
    assert pickle.loads(pickle.dumps(term)).answer == items[0]
    assert OfTexts(name)([term]) == METRICS[name](items[:1])


LOST = {
    "3 words not spelled": ({"unspelled": 3}, ("byte_perplexity", "bits_per_byte")),
    "2 gaps not charged": ({"respaced": 2}, ("bits_per_byte",)),
    "2 words left out": (
        {"left_out": 2},
        ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    ),
}


@pytest.mark.parametrize("said", LOST)
def test_rates_are_refused_where_strings_were_not_scored(said, caplog):
    lost, rates = LOST[said]
    [first, second] = sampled()
    items = [first, dataclasses.replace(second, **lost)]
    for rate in rates:
        assert METRICS[rate](items) == f"refused: {said}"
        assert METRICS[f"{rate}_stderr"](items) == "N/A"
    assert said.partition(" left")[0] in caplog.text
    for name in METRICS:
        if "token" in name or "effective" in name:
            assert METRICS[name](items) == METRICS[name](sampled())


def test_texts_without_an_error_leave_that_of_the_others():
    """DRAWN nats of the first text, spread over the seven tokens of both."""
    first, second = sampled()
    checked = dataclasses.replace(first.estimate, stderr=first.estimate.draws_stderr)
    items = [dataclasses.replace(first, estimate=checked), second]
    error = DRAWN / 7 * P ** (-1 / 7)
    found = METRICS["token_perplexity_monte_carlo_error"](items)
    assert found == f"N/A: 1 of 2 texts; {error:.2g} by the others"


def test_no_perplexity_is_below_one():
    """Upper bounds of log p above 0 say nothing, and nothing is what is printed."""
    at_least = METRICS["token_perplexity_at_least"]

    def bounded(*upper: float) -> list[Answer]:
        return [
            dataclasses.replace(a, estimate=dataclasses.replace(a.estimate, upper=nats))
            for a, nats in zip(sampled(), upper, strict=True)
        ]

    known = at_least(bounded(math.log(1 / 2), math.log(1 / 8)))
    assert known == pytest.approx(P ** (-1 / 7))
    assert at_least(bounded(20.0, -3.5)) == 1.0


def test_odd_numbers_of_words_and_draws():
    empty = [answer("", Estimate.exact(0.0, num_tokens=0, estimator="is"))]
    for name in ("word_perplexity", "token_perplexity"):
        assert METRICS[name](empty) == "refused: no words to predict"
        assert METRICS[f"{name}_stderr"](empty) == "N/A"
    ended = [answer("", Estimate.exact(-1.0, num_tokens=1))]
    assert METRICS["bits_per_byte"](ended) == "refused: no bytes"
    uncounted = [dataclasses.replace(each, words=0) for each in ended]
    assert METRICS["word_perplexity"](uncounted) == "refused: no words"
    assert METRICS["word_perplexity_stderr"](uncounted) == "N/A"
    # Finite perplexities that no float holds are not infinite.
    beyond = [answer("a", Estimate.exact(-1000.0, num_tokens=1))]
    for name in ("word_perplexity", "token_perplexity", "certified_token_perplexity"):
        assert METRICS[name](beyond) == "above 1.8e+308"
    assert METRICS["token_perplexity_stderr"](beyond) == "N/A"
    assert METRICS["bits_per_byte"](beyond) == pytest.approx(1000 / math.log(2))
    # A text of one word: lm-eval's table has a place for no more than a few digits.
    for nats, expected in ((30.0, pytest.approx(math.e**30)), (100.0, "2.6881e+43")):
        sure = Estimate.exact(-nats, num_tokens=1, estimator="exact")
        term = perplexity.Term.of("word_perplexity", answer("Ada", sure))
        assert OfTexts("word_perplexity")([term]) == expected
    # In the place of an error lm-eval prints a float or "N/A".
    other = Estimate.exact(-50.0, num_tokens=1, estimator="exact")
    terms = [term, perplexity.Term.of("word_perplexity", answer("Bo", other))]
    assert METRICS["word_perplexity_stderr"]([t.answer for t in terms]) > 2.0**53
    assert OfTexts("word_perplexity_stderr")(terms) == "N/A"
    # The corpus level takes as many draws as the least has; what is known for sure
    # weighs the same under every draw.
    few = sampled(weights=((1 / 4, 3 / 4, 9.0, 9.0), (1 / 8, 1 / 8)))
    known = Answer.exact(math.log(1 / 2), "")
    corpus, effective = "corpus_token_perplexity", "effective_samples_corpus"
    assert METRICS[corpus](few) == pytest.approx(SAMPLED[corpus])
    assert METRICS[effective](few) == pytest.approx(1.6)
    with_known = (sum(PRODUCTS) / 2 / 2) ** (-1 / 8)
    assert METRICS[corpus]([*sampled(), known]) == pytest.approx(with_known)
    assert METRICS[effective]([*sampled(), known]) == pytest.approx(1.6)
    # Documents that share their draws pay for the certificate.
    shared = METRICS["certified_token_perplexity"](sampled(streams=("a", "a")))
    assert shared == pytest.approx((P * 0.05**2) ** (-1 / 7))


def test_a_share_of_documents_is_unreliable():
    good = torch.linspace(-1, 1, 400, dtype=torch.float64)
    heavy = torch.tensor([0.0] * 390 + [30.0 + i for i in range(10)]).double()
    items = [
        answer("a b", Estimate.from_log_weights(log_w, num_tokens=2), str(i))
        for i, log_w in enumerate((good, good, good, heavy))
    ]
    assert METRICS["share_pareto_k_above_0.7"](items) == 0.25


SCORED = ScoredFloat(Answer.exact(-3.0, "a bc"))


def test_models_that_leave_no_record_have_no_rates_per_token():
    """Nothing says how many tokens a plain number is of, nor what bound it is."""
    answers = PerplexityTask.terms({"text": "a bc"}, [-3.0])
    assert set(answers) == {
        f"{rate}{part}"
        for rate in ("word_perplexity", "byte_perplexity", "bits_per_byte")
        for part in ("", "_stderr")
    }
    for name, term in answers.items():
        assert [*term] == [-3.0, 2 if "word" in name else 4]
    doc = {"document": 0, "text": "a bc", "part": "whole"}
    for task in (KnownWordsTask, CompletionTask):
        assert task.terms(doc, [SCORED])
        with pytest.raises(ValueError, match=r"do not say how many tokens.*latent_per"):
            task.terms(doc, [-3.0])


# -- topic models ---------------------------------------------------------------------

TOPIC_TEXTS = ["fox hound zebra moon", "sky sky fox", "moon"]


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    directory = tmp_path_factory.mktemp("topics")
    phi = np.array([[4.0, 3, 1, 1], [1, 1, 3, 3]])
    TopicTables(["fox", "hound", "moon", "sky"], phi, np.array(0.5)).write(directory)
    return directory


def test_perplexity_is_of_known_words(topics, tmp_path, stock_data):
    path, model = tmp_path / "texts.jsonl", lm_latent_eval.load(topics)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPIC_TEXTS))
    total = model.log_likelihood(TOPIC_TEXTS, estimator="beam", num_samples=1000)
    expected = math.exp(-sum(found.log_evidence for found in total) / 7)

    def run(task):
        found = evaluated(
            "latent_lda",
            [task],
            lm_latent_eval.task_path(),
            metadata={"text_file": str(path)},
            model_args={"pretrained": str(topics), "estimator": "beam"},
        )
        assert found["config"]["latent_eval"]["tokens_are"] == "known words"
        return {n: value for n, value in found["results"][task].items() if "," in n}

    every, known = run("latent_perplexity_full"), run("latent_topic_perplexity")
    assert {f"{name},none" for name in METRICS} <= {*every}
    assert abs(every["token_perplexity,none"] - expected) < 1e-9  # without zebra
    for rate in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert every[f"{rate},none"] == "refused: 1 words left out"
    # The task of topic models has no other rate.
    rows = {name for name in known if not name.endswith("_stderr,none")}
    wanted = {name for name in PerplexityTask.listed if "token" in name}
    assert rows == {f"{n},none" for n in wanted if not n.endswith("_stderr")}
    assert known == {name: every[name] for name in known}
    # Metrics of a stock task divide by all words of a text, and can refuse nothing.
    with pytest.raises(ValueError, match=r"wikitext/\d: .* leaves them out, and word"):
        run("wikitext")


def test_halves_are_beginnings_of_their_text():
    found = list(halves(["a  b\tc d.", "one", "", " x y z"]))
    assert [part["text"] for part in found] == ["a  b", "a  b\tc d.", " x", " x y z"]


@pytest.mark.parametrize(
    ("shared", "drawn"), [(False, 0.2 * 2.1199), (True, 0.4 * 2.7764)]
)
def test_few_replicates_and_shared_draws_widen_errors_of_completions(shared, drawn):
    """Quantiles of Student's t of 16 and 4 degrees, printed tables say."""
    terms = []
    for n, (part, tokens) in enumerate([("given", 2), ("whole", 5)] * 2):
        estimate = Estimate.exact(-1.0 * tokens, num_tokens=tokens)
        estimate = dataclasses.replace(estimate, draws_stderr=0.1, draws_degrees=4.0)
        score = ScoredFloat(answer("a", estimate, "" if shared else str(n)))
        doc = {"document": n // 2, "text": "a", "part": part}
        terms += [CompletionTask.terms(doc, [score])["completed_tokens"]]
    error = math.e * math.hypot(drawn / 1.95996, 0.02) / 6
    found = OfHalves("completion_perplexity_draws_error")(terms)
    assert found == pytest.approx(error, rel=1e-4)
