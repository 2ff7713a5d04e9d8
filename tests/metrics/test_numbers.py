"""What each metric gives beside its test cases."""

import json
import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorCurve
from lm_latent_eval.estimators import InformationRate
from lm_latent_eval.metrics import (
    contrastive_entropy,
    distortion_error,
    importance_perplexity,
    information_rate,
)
from lm_latent_eval.text.counts import gamble, letters, ngram_entropies
from lm_latent_eval.text.noise import NoiseChannel

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


# -- contrastive entropy ---------------------------------------------------------------


def test_levels_that_json_has_made_strings():
    """The card judges a model by another's result as it is."""
    first = contrastive_entropy(**SCORES)
    assert contrastive_entropy(**json.loads(json.dumps(SCORES))) == first
    read = json.loads(json.dumps(first))
    assert set(read["ratio"]) == {"0.1", "0.5"}, "premise"
    found = contrastive_entropy(**SCORES, against=read)
    assert found["verdict"] == {0.5: "indeterminate"}, "of itself"


def test_a_function_scores_texts():
    """Four nats a word of nonsense: the entropy counts what the channel let in."""
    texts = ["a b c d e f g h i j", "a b", "c d e"]

    def scorer(batch):
        words = [text.split() for text in batch]
        return [-1.0 * len(each) - 4.0 * each.count("X") for each in words]

    found = contrastive_entropy(texts=texts, scorer=scorer, vocabulary=["X"], seed=3)

    for level in (0.1, 0.3, 0.5):
        channel = NoiseChannel.preset(level, ["X"])
        nonsense = [
            channel.distort(text.split(), seed=3, name=n, replicate=r).count("X")
            for r in range(10)
            for n, text in enumerate(texts)
        ]
        expected = 4 * sum(nonsense) / 10 / 15
        assert found["nats_per_word"][level] == pytest.approx(expected)
    assert (found["seed"], found["vocabulary_size"], found["replicates"]) == (3, 1, 10)


def test_without_a_ratio_entropies_are_kept():
    """A model that prefers the mildest copies, judged and judging."""
    contrary = {**SCORES, "distorted": {**SCORES["distorted"]}}
    contrary["distorted"][0.1] = [[-9.0, -23.0, -7.0], [-9.5, -23.5, -6.0]]

    expected = contrastive_entropy(**SCORES)
    found = contrastive_entropy(**contrary, against=expected)
    assert found["nats_per_word"][0.1] == pytest.approx(-(2.5 + 2.5) / 2 / 15)
    assert found["nats_per_word"][0.5] == expected["nats_per_word"][0.5]
    for name in ("ratio", "ratio_stderr", "ratio_replicate_stderr"):
        assert found[name] == {0.1: None, 0.5: None}
    assert found["verdict"] == {0.5: None}
    assert contrastive_entropy(**SCORES, against=found)["verdict"] == {0.5: None}


# -- distortion ------------------------------------------------------------------------


@pytest.mark.parametrize("container", [list, np.array, torch.DoubleTensor])
def test_settings_and_errors_reach_the_curve(container):
    true_log_p = [-float(n) for n in range(1, 31)]
    model_log_p = [1.1 * log_p for log_p in true_log_p]
    stderr = [0.005 * n for n in range(30)]
    columns = torch.tensor([true_log_p, model_log_p, stderr], dtype=torch.float64)
    settings = {"num_bins": 2, "resamples": 50, "confidence": 0.5, "seed": 9}
    settings["bins"] = "count"  # by width: the test cases of its module
    found = distortion_error(
        true_log_p=true_log_p,
        model_log_p=model_log_p,
        stderr=container(stderr),
        histogram_bins=3,
        **settings,
    )
    curve = ErrorCurve.of(*columns[:2], stderr=columns[2], **settings)
    assert found["monte_carlo_stderr"] == curve.monte_carlo_stderr != 0
    assert found["estimator_bias"] == curve.estimator_bias != 0
    for name in ("monte_carlo_stderr", "estimator_bias", "upper"):
        assert [each[name] for each in found["bins"]] == curve.bins[name].tolist()
    assert np.array(found["histogram"]["counts"]).sum() == 30
    assert len(found["histogram"]["edges"]) == 4


# -- importance perplexity -------------------------------------------------------------


def test_token_level_by_hand():
    """Two texts: filters of 1/4 and 1/8 over three tokens; one of 1/2 over one."""
    half = math.log(0.5)
    increments = [[[half, half, 0.0], [half, 0.0, 2 * half]], [[half]]]

    found = importance_perplexity(log_increments=increments)

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
    instance = importance_perplexity(**rows)["instance_level_perplexity"]
    token = importance_perplexity(**rows, level="token", num_configurations=4)
    assert token["token_level_perplexity"] == instance
    # A union over four of them costs the certificate log 4.
    assert token["certified_perplexity"] == pytest.approx(instance * 80 ** (1 / 2))


def test_a_probability_above_1_by_chance_is_told(caplog):
    """Draws of a text that is nearly certain."""
    weights = [[math.log(w) for w in (1.3, 0.9, 1.05)], [math.log(0.2)] * 3]
    found = importance_perplexity(log_weights=weights, num_tokens=[1, 2])
    assert found["log_likelihood"] < 0
    assert "1 inputs, the first of them number 0," in caplog.text
    caplog.clear()
    importance_perplexity(log_weights=[[0.0, 0.0]], num_tokens=[1])
    assert not caplog.records


# -- information rates -----------------------------------------------------------------


@pytest.mark.parametrize("scalar", [float, torch.tensor, np.array, np.float64])
def test_errors_scale_with_their_rate(scalar):
    rows = information_rate(
        log_likelihoods=[-60.0, -40.0], num_words=[15, 10], stderr=0.5
    )
    total = {"log_likelihoods": scalar(-100.0), "num_words": scalar(25)}
    found = information_rate(**total, stderr=scalar(0.5))
    assert found == rows and found["nats_per_word"] == 4
    assert found["nats_per_word_stderr"] == 0.02
    assert found["bits_per_word_stderr"] == pytest.approx(0.02 / math.log(2))
    assert found["word_perplexity_stderr"] == pytest.approx(0.02 * math.exp(4))
    plain = information_rate(**total)
    assert plain["word_perplexity"] == found["word_perplexity"]
    assert not [name for name in plain if "stderr" in name]


def test_published_rates_say_the_same():
    """5.6 characters a word, spaces counted."""
    for published in (
        {"bits_per_character": 1.5},
        {"nats_per_character": 1.5 * math.log(2)},
        {"character_perplexity": 2**1.5},
        {"bits_per_word": 8.4},
        {"word_perplexity": 2**8.4},
    ):
        found = information_rate(**published, num_characters=56, num_words=10)
        assert found["bits_per_character"] == pytest.approx(1.5)
        assert found["word_perplexity"] == pytest.approx(2 ** (5.6 * 1.5))
    found = information_rate(log_likelihoods=-2000.0, num_sentences=1, num_words=400)
    assert found["sentence_perplexity"] == math.inf, "no float holds it"
    assert found["bits_per_sentence"] == InformationRate(2000.0).bits


def test_texts_alone_have_entropies_of_their_letters():
    """The card counts texts that have log-likelihoods."""
    texts = ["To be, or not", "to be."]
    alone = information_rate(texts=texts)
    symbols = letters(" ".join(texts))
    rates = [each.rate.nats for each in ngram_entropies(symbols, 5)]
    assert [each["nats_per_symbol"] for each in alone["ngram_entropies"]] == rates
    assert not [name for name in alone if name.startswith("nats_per")]
    off = information_rate(texts=["a"], max_order=0)
    assert off["ngram_entropies"] == [] and off["gambling"] is None


@pytest.mark.parametrize(
    ("text", "orders"),
    [("Hi", [0, 1, 2]), ("a", [0, 1]), ("中文很好", []), ("1969", [])],
)
def test_texts_of_few_letters(text, orders):
    """Rates need no letters; what letters say is said as far as there are some."""
    found = information_rate(texts=[text], log_likelihoods=[-6.0])
    assert found["nats_per_character"] == pytest.approx(6 / len(text))
    assert found["nats_per_word"] == 6
    assert [each["order"] for each in found["ngram_entropies"]] == orders
    if orders:
        won = gamble(letters(text), max_order=len(text))
        assert found["gambling"]["nats_per_symbol"] == won.rate.nats
        assert found["gambling"]["log_capital"] == won.log_capital
    else:
        assert found["gambling"] is None


def test_few_draws_say_nothing_of_a_tail():
    """And strict JSON holds the result, of equal weights and of many as well."""
    few, equal = [[0.0] * 16] * 2, [[-1.0] * 40]
    spread = [[-1.0 - n / 40 for n in range(40)]]
    tails = {"pareto_ks": [], "share_pareto_k_above_0.7": []}
    for rows in (few, equal, spread):
        found = importance_perplexity(log_weights=rows, num_tokens=[1] * len(rows))
        json.dumps(found, allow_nan=False)
        for name, values in tails.items():
            values.append(found[name])
    of_few, of_equal, [known] = tails["pareto_ks"]
    assert (of_few, of_equal) == ([None, None], [None]) and known < 0.7
    assert tails["share_pareto_k_above_0.7"] == [None, 0.0, 0.0]
