"""What each metric gives beside its test cases, and what it refuses."""

import json
import math

import numpy as np
import pytest
import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.distortion.statistics import ErrorCurve
from lm_latent_eval.estimators import InformationRate
from lm_latent_eval.scoring.string_scorers import string_scorer
from lm_latent_eval.text.counts import gamble, letters, ngram_entropies
from lm_latent_eval.text.noise import NoiseChannel
from tests.metrics.conftest import of

SCORES = {
    "log_scores": [-10.0, -24.0, -7.5],
    "num_words": [4, 9, 2],
    "distorted": {
        0.1: [[-12.0, -25.0, -9.0], [-12.5, -25.5, -9.5]],
        0.5: [[-13.0, -32.0, -14.5], [-14.0, -33.0, -15.5]],
    },
}


def never(texts):
    raise AssertionError("nothing should have been scored")


ROWS = {"true_log_p": [-1.0] * 11, "model_log_p": [-2.0] * 11, "resamples": 10}
NO_ROWS = {"log_weights": None, "num_tokens": None}
REFUSED = {
    "contrastive_entropy": (
        {"log_scores": [-1.0, -2.0], "distorted": {0.1: [-2.0, -4.0]}},
        [
            ({"distorted": {0.1: [-2.0], 0.3: [-2.0, -3.0]}}, "every level needs as"),
            ({"distorted": {}}, "every level needs"),
            ({"distorted": [[[-2]], [[-2]]]}, r"3 lists, .* \[0.1, 0.3, 0.5\]"),
            ({"distorted": [[[-2]], [[-2, -3]]], "levels": [1]}, "of one length"),
            ({"num_words": [3, None]}, r"num_words\[1\] is missing"),
            ({"num_words": [3, 0]}, r"num_words\[1\] is 0; expected .* at least 1"),
            ({"num_words": [3, 1.5]}, r"num_words\[1\] is 1.5; expected a whole num"),
            ({"log_scores": [None, -2.0]}, r"log_scores\[0\] is missing"),
            ({"distorted": {0.1: [-2.0, None]}}, r"distorted\[0.1\]\[1\] is missing"),
            ({"distorted": [[[-2]], [[None]]], "levels": [1]}, r"\[0\]\[0\] is miss"),
            ({"distorted": {-0.1: [-2.0, -4.0]}}, r"level -0.1: .* number above 0"),
            ({"distorted": [[[-2]] * 2] * 2, "levels": [3, 3]}, "3: .* each once"),
            ({"against": {"ratio": {0.1: 1.0}}}, "another model on the same text"),
            ({"texts": ["a"]}, "missing: scorer"),
            ({"texts": ["a"], "scorer": len}, "leave out distorted, log_scores"),
        ],
    ),
    "distortion_error": (
        ROWS,
        [
            ({"model_log_p": [-2.0] * 10 + [-math.inf]}, r"model_log_p\[10\] is -inf"),
            ({"model_log_p": [-2.0] * 10 + [None]}, r"model_log_p\[10\] is missing"),
            ({"stderr": [0.1] * 10 + [None]}, r"stderr\[10\] is missing"),
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
            ({"log_weights": [[5.0, 6.0]]}, "input 0: .*log p = .* ab"),
            ({"log_weights": [[-3.0], [5.0]], "num_tokens": [1] * 2}, "1: .*log p ="),
            ({"log_weights": [[0.01, 0.01]]}, "input 0: .*log p = .* ab"),
        ],
    ),
    "information_rate": (
        {"log_likelihoods": [-1.0, -2.0], "num_words": [3, 4]},
        [
            ({"log_likelihoods": [-3.0, -math.inf]}, "finite"),
            ({"log_likelihoods": [-3.0, None]}, r"log_likelihoods\[1\] is missing"),
            ({"num_words": [3, 4.5]}, r"num_words\[1\] is 4.5; expected a whole num"),
            ({"num_words": [3, -4]}, r"num_words\[1\] is -4; expected .* at least 0"),
            ({"num_words": None}, "missing: one of num_tokens"),
            ({"bits_per_word": 3.0}, "say the same twice"),
            ({"log_likelihoods": None, "bits_per_byte": 3.0}, "missing: num_bytes"),
            ({"texts": ["a", "b"]}, "leave out num_words"),
            ({"texts": ["a"], "num_words": None}, "1 texts, but 2 log_likelihoods"),
        ],
    ),
}


@pytest.mark.parametrize("metric", REFUSED, indirect=True)
def test_bad_input_names_itself(metric):
    ok, cases = REFUSED[metric.name]
    metric.compute(**ok)
    for changed, message in cases:
        given = {k: v for k, v in {**ok, **changed}.items() if v is not None}
        with pytest.raises(ValueError, match=message):
            metric.compute(**given)


# -- contrastive entropy ---------------------------------------------------------------


@of("contrastive_entropy")
def test_scores_in_any_container_and_without_words(metric):
    expected = metric.compute(**SCORES)
    for array in (np.array, torch.tensor):
        given = {name: array(SCORES[name]) for name in ("log_scores", "num_words")}
        given["distorted"] = {k: array(v) for k, v in SCORES["distorted"].items()}
        assert metric.compute(**given) == expected
    inputs = {name: v for name, v in SCORES.items() if name != "num_words"}
    found = metric.compute(**inputs, baseline=0.5)
    assert found["num_words"] is None
    assert not [name for name in found if "per_word" in name]
    assert found["nats_per_sentence"] == expected["nats_per_sentence"]
    assert found["ratio"] == pytest.approx({0.1: 10.5 / 39, 0.5: 1})


@of("contrastive_entropy")
def test_another_model_is_judged(metric):
    """Twice the scores: entropies are higher and the ratio is the same."""
    first = metric.compute(**SCORES)
    clean = 2 * torch.tensor(SCORES["log_scores"]).double()
    copies = {k: 2 * torch.tensor(v).double() for k, v in SCORES["distorted"].items()}
    second = SCORES | {"log_scores": clean, "distorted": copies}
    read = json.loads(json.dumps(first))
    assert set(read["ratio"]) == {"0.1", "0.5"}, "premise"
    for against in (first, read):
        found = metric.compute(**second, against=against)
        assert found["verdict"] == {0.5: "superior"}


@of("contrastive_entropy")
def test_a_function_scores_texts(metric):
    """Four nats a word of nonsense: the entropy counts what the channel let in."""
    texts = ["a b c d e f g h i j", "a b", "c d e"]

    def scorer(batch):
        words = [text.split() for text in batch]
        return [-1.0 * len(each) - 4.0 * each.count("X") for each in words]

    found = metric.compute(texts=texts, scorer=scorer, vocabulary=["X"], seed=3)

    for level in (0.1, 0.3, 0.5):
        channel = NoiseChannel.preset(level, ["X"])
        nonsense = [
            channel.distort(text.split(), seed=3, name=n, replicate=r).count("X")
            for r in range(10)
            for n, text in enumerate(texts)
        ]
        expected = 4 * sum(nonsense) / 10 / 15
        assert found["nats_per_word"][level] == pytest.approx(expected)

    noise = {"vocabulary": ["river", "plum", "she"], "levels": (0.1, 0.4), "seed": 5}
    studied = ["She studied in the town.", "The book was published in 1969."]
    noise |= {"texts": studied, "replicates": 3}
    how = {"num_samples": 20}
    found = metric.compute(scorer=str(CHECKPOINT), settings=how, **noise)
    assert found == metric.compute(scorer=string_scorer(CHECKPOINT, **how), **noise)
    assert found["ratio"][0.4] > 1
    assert (found["seed"], found["vocabulary_size"], found["replicates"]) == (5, 3, 3)
    # A text without words would count as a sentence that no noise can touch.
    for text in ("", " \n"):
        with pytest.raises(ValueError, match=r"texts\[1\] is .* no word to distort"):
            metric.compute(texts=["a bb ccc", text], scorer=never)
    with pytest.raises(ValueError, match=r"0.2 is no level; .* \[0.1, 0.3, 0.5\]"):
        metric.compute(texts=["a b"], scorer=never, baseline=0.2)


@of("contrastive_entropy")
def test_without_a_ratio_entropies_are_kept(metric):
    """A model that prefers the mildest copies, judged and judging."""
    contrary = {**SCORES, "distorted": {**SCORES["distorted"]}}
    contrary["distorted"][0.1] = [[-9.0, -23.0, -7.0], [-9.5, -23.5, -6.0]]

    expected = metric.compute(**SCORES)
    found = metric.compute(**contrary, against=expected)
    assert found["nats_per_word"][0.1] == pytest.approx(-(2.5 + 2.5) / 2 / 15)
    assert found["nats_per_word"][0.5] == expected["nats_per_word"][0.5]
    for name in ("ratio", "ratio_stderr", "ratio_replicate_stderr"):
        assert found[name] == {0.1: None, 0.5: None}
    assert found["verdict"] == {0.5: None}
    assert metric.compute(**SCORES, against=found)["verdict"] == {0.5: None}


# -- distortion ------------------------------------------------------------------------


@of("distortion_error")
@pytest.mark.parametrize("container", [list, np.array, torch.DoubleTensor])
def test_settings_and_errors_reach_the_curve(metric, container):
    true_log_p = [-float(n) for n in range(1, 31)]
    model_log_p = [1.1 * log_p for log_p in true_log_p]
    stderr = [0.005 * n for n in range(30)]
    columns = torch.tensor([true_log_p, model_log_p, stderr], dtype=torch.float64)
    settings = {"num_bins": 2, "resamples": 50, "confidence": 0.5, "seed": 9}
    for bins in ("width", "count"):
        settings["bins"] = bins
        found = metric.compute(
            true_log_p=true_log_p,
            model_log_p=model_log_p,
            stderr=container(stderr),
            histogram_bins=3,
            **settings,
        )
        curve = ErrorCurve.of(*columns[:2], stderr=columns[2], **settings)
        for each in ("monte_carlo_stderr", "estimator_bias"):
            assert found[each] == getattr(curve, each) != 0
            wanted = [getattr(b, each) for b in curve.bins]
            assert [b[each] for b in found["bins"]] == wanted
        assert [b["upper"] for b in found["bins"]] == [b.upper for b in curve.bins]
        assert np.array(found["histogram"]["counts"]).sum() == 30
        assert len(found["histogram"]["edges"]) == 4


# -- importance perplexity -------------------------------------------------------------


@of("importance_perplexity")
def test_token_level_by_hand(metric):
    """Two texts: filters of 1/4 and 1/8 over three tokens; one of 1/2 over one."""
    half = math.log(0.5)
    increments = [[[half, half, 0.0], [half, 0.0, 2 * half]], [[half]]]

    found = metric.compute(log_increments=increments)

    p = 3 / 16 * 1 / 2
    assert found["token_level_perplexity"] == pytest.approx(p ** (-1 / 4))
    assert found["certified_perplexity"] == pytest.approx((p / 20) ** (-1 / 4))
    assert found["num_tokens"] == 4
    assert found["log_likelihood"] == pytest.approx(math.log(p))
    assert found["effective_sample_sizes"] == pytest.approx([9 / 5, 1])
    assert found["token_level_perplexity_draws_stderr"] is None, "one filter: unknown"
    assert not [name for name in found if "corpus" in name or "instance" in name]
    # Weights of filters are of the token level.
    rows = {"log_weights": [[-4.0, -5.0]], "num_tokens": [2]}
    instance, token = metric.compute(**rows), metric.compute(**rows, level="token")
    assert token["token_level_perplexity"] == instance["instance_level_perplexity"]


@of("importance_perplexity")
def test_estimates_of_a_model(metric):
    texts = ["She studied in the town.", "Falmere is a town in the north."]
    estimates = lm_latent_eval.load(CHECKPOINT).log_likelihood(
        texts, estimator="is", num_samples=60
    )
    found = metric.compute(
        log_weights=[e.log_weights for e in estimates],
        num_tokens=[e.num_tokens for e in estimates],
        num_configurations=4,
    )
    total = sum(e.log_evidence for e in estimates)
    tokens = sum(e.num_tokens for e in estimates)
    perplexity = found["instance_level_perplexity"]
    assert perplexity == pytest.approx(math.exp(-total / tokens))
    assert found["certified_perplexity"] == pytest.approx(
        math.exp(-(total - math.log(4 / 0.05)) / tokens)
    )
    assert found["pareto_ks"] == pytest.approx([e.pareto_k for e in estimates])
    errors = [e.draws_stderr for e in estimates]
    assert found["draws_stderrs"] == pytest.approx(errors)
    in_nats = math.hypot(*errors, sum(e**2 for e in errors) / 2) / tokens
    printed = found["instance_level_perplexity_draws_stderr"]
    assert printed == pytest.approx(perplexity * in_nats, rel=1e-12)


@of("importance_perplexity")
def test_a_perplexity_that_no_float_holds(metric):
    found = metric.compute(log_weights=[[-800.0, -900.0]], num_tokens=[1])
    for level in ("instance", "corpus"):
        assert found[f"{level}_level_perplexity"] == math.inf
        assert found[f"{level}_level_perplexity_draws_stderr"] is None
    assert found["log_likelihood"] == pytest.approx(-800 - math.log(2))
    sure = metric.compute(log_weights=[[-800.0, -800.0]], num_tokens=[1])
    assert sure["instance_level_perplexity_draws_stderr"] == 0


@of("importance_perplexity")
def test_a_probability_above_1_by_chance_is_told(metric, caplog):
    """Draws of a text that is nearly certain."""
    weights = [[math.log(w) for w in (1.3, 0.9, 1.05)], [math.log(0.2)] * 3]
    found = metric.compute(log_weights=weights, num_tokens=[1, 2])
    assert found["log_likelihood"] < 0
    assert "1 inputs, the first of them number 0," in caplog.text
    caplog.clear()
    metric.compute(log_weights=[[0.0, 0.0]], num_tokens=[1])
    assert not caplog.records


# -- information rates -----------------------------------------------------------------


@of("information_rate")
@pytest.mark.parametrize("scalar", [float, torch.tensor, np.array, np.float64])
def test_errors_scale_with_their_rate(metric, scalar):
    rows = metric.compute(
        log_likelihoods=[-60.0, -40.0], num_words=[15, 10], stderr=0.5
    )
    total = {"log_likelihoods": scalar(-100.0), "num_words": scalar(25)}
    found = metric.compute(**total, stderr=scalar(0.5))
    assert found == rows and found["nats_per_word"] == 4
    assert found["nats_per_word_stderr"] == 0.02
    assert found["bits_per_word_stderr"] == pytest.approx(0.02 / math.log(2))
    assert found["word_perplexity_stderr"] == pytest.approx(0.02 * math.exp(4))
    plain = metric.compute(**total)
    assert plain["word_perplexity"] == found["word_perplexity"]
    assert not [name for name in plain if "stderr" in name]


@of("information_rate")
def test_published_rates_say_the_same(metric):
    """5.6 characters a word, spaces counted."""
    for published in (
        {"bits_per_character": 1.5},
        {"nats_per_character": 1.5 * math.log(2)},
        {"character_perplexity": 2**1.5},
        {"bits_per_word": 8.4},
        {"word_perplexity": 2**8.4},
    ):
        found = metric.compute(**published, num_characters=56, num_words=10)
        assert found["bits_per_character"] == pytest.approx(1.5)
        assert found["word_perplexity"] == pytest.approx(2 ** (5.6 * 1.5))
    found = metric.compute(log_likelihoods=-2000.0, num_sentences=1, num_words=400)
    assert found["sentence_perplexity"] == math.inf, "no float holds it"
    assert found["bits_per_sentence"] == InformationRate(2000.0).bits


@of("information_rate")
def test_texts_are_counted(metric):
    texts = ["To be, or not to be.", "That is the question. It was."]
    found = metric.compute(
        texts=texts, log_likelihoods=[-20.0, -30.0], num_tokens=[8, 9], max_order=2
    )
    assert (found["num_words"], found["num_sentences"]) == (12, 3)
    assert found["num_characters"] == found["num_bytes"] == 49
    assert found["nats_per_token"] == pytest.approx(50 / 17)
    total = metric.compute(
        texts=texts, log_likelihoods=-50.0, num_tokens=17, max_order=2
    )
    assert total == found

    symbols = letters(" ".join(texts))
    rates = [each.rate.nats for each in ngram_entropies(symbols, 2)]
    assert [each["nats_per_symbol"] for each in found["ngram_entropies"]] == rates
    won = gamble(symbols, max_order=2)
    assert found["gambling"]["bits_per_symbol"] == won.rate.bits
    assert found["gambling"]["log_capital"] == won.log_capital

    alone = metric.compute(texts=["to be or not to be"])
    assert alone["num_words"] == 6 and len(alone["ngram_entropies"]) == 6
    assert not [name for name in alone if name.startswith("nats_per")]
    off = metric.compute(texts=["a"], max_order=0)
    assert off["ngram_entropies"] == [] and off["gambling"] is None
    with pytest.raises(TypeError, match="not one string"):
        metric.compute(texts="to be")


@of("information_rate")
@pytest.mark.parametrize(
    ("text", "orders"),
    [("Hi", [0, 1, 2]), ("a", [0, 1]), ("中文很好", []), ("1969", [])],
)
def test_texts_of_few_letters(metric, text, orders):
    """Rates need no letters; what letters say is said as far as there are some."""
    found = metric.compute(texts=[text], log_likelihoods=[-6.0])
    assert found["nats_per_character"] == pytest.approx(6 / len(text))
    assert found["nats_per_word"] == 6
    assert [each["order"] for each in found["ngram_entropies"]] == orders
    if orders:
        won = gamble(letters(text), max_order=len(text))
        assert found["gambling"]["nats_per_symbol"] == won.rate.nats
    else:
        assert found["gambling"] is None
