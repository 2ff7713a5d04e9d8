"""What ``information_rate`` takes, gives and refuses."""

import math

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators import InformationRate
from lm_latent_eval.text.counts import gamble, letters, ngram_entropies
from tests.metrics.conftest import of


@of("information_rate")
def test_errors_scale_with_their_rate(metric):
    found = metric.compute(
        log_likelihoods=[-60.0, -40.0], num_words=[15, 10], stderr=0.5
    )
    assert found["nats_per_word"] == 4
    assert found["nats_per_word_stderr"] == 0.02
    assert found["bits_per_word_stderr"] == pytest.approx(0.02 / math.log(2))
    assert found["word_perplexity_stderr"] == pytest.approx(0.02 * math.exp(4))
    plain = metric.compute(log_likelihoods=-100.0, num_words=25)
    assert plain["word_perplexity"] == found["word_perplexity"]
    assert not [name for name in plain if "stderr" in name]


@of("information_rate")
@pytest.mark.parametrize(
    "published",
    [
        {"bits_per_character": 1.5},
        {"nats_per_character": 1.5 * math.log(2)},
        {"character_perplexity": 2**1.5},
        {"bits_per_word": 8.4},
        {"word_perplexity": 2**8.4},
    ],
)
def test_published_rates_say_the_same(metric, published):
    """5.6 characters a word, spaces counted."""
    found = metric.compute(**published, num_characters=56, num_words=10)
    assert found["bits_per_character"] == pytest.approx(1.5)
    assert found["word_perplexity"] == pytest.approx(2 ** (5.6 * 1.5))


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


@of("information_rate")
def test_a_text_needs_no_model(metric):
    found = metric.compute(texts=["to be or not to be"])
    assert found["num_words"] == 6 and len(found["ngram_entropies"]) == 6
    assert not [name for name in found if name.startswith("nats_per")]
    off = metric.compute(texts=["a"], max_order=0)
    assert off["ngram_entropies"] == [] and off["gambling"] is None


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


@of("information_rate")
@pytest.mark.parametrize("scalar", [torch.tensor, np.array, np.float64])
def test_totals_of_any_kind(metric, scalar):
    expected = metric.compute(log_likelihoods=-100.0, num_words=25, stderr=0.5)
    found = metric.compute(
        log_likelihoods=scalar(-100.0), num_words=scalar(25), stderr=scalar(0.5)
    )
    assert found == expected
    texts = {"texts": ["to be or not", "to be"], "num_tokens": scalar(8)}
    of_texts = metric.compute(**texts, log_likelihoods=scalar(-100.0))
    assert of_texts["nats_per_token"] == 100 / 8


@of("information_rate")
def test_a_rate_that_no_float_holds(metric):
    found = metric.compute(log_likelihoods=-2000.0, num_sentences=1, num_words=400)
    assert found["sentence_perplexity"] == math.inf
    assert found["word_perplexity"] == pytest.approx(math.exp(5))
    assert found["bits_per_sentence"] == InformationRate(2000.0).bits


@of("information_rate")
def test_rate_refusals(metric):
    ok = {"log_likelihoods": [-1.0, -2.0], "num_words": [3, 4]}
    metric.compute(**ok)
    for changed, message in [
        ({"log_likelihoods": [3.0, 1.0]}, "Is this a loss"),
        ({"log_likelihoods": [-3.0, -math.inf]}, "finite"),
        ({"log_likelihoods": [-3.0, None]}, r"log_likelihoods\[1\] is missing"),
        ({"num_words": [3, None]}, r"num_words\[1\] is missing"),
        ({"num_words": [3, 4.5]}, r"num_words\[1\] is 4.5; expected a whole number"),
        ({"num_words": [3, -4]}, r"num_words\[1\] is -4; expected .* at least 0"),
        ({"num_words": [0, 0]}, "num_words must be at least 1"),
        ({"num_words": 7}, "Mismatch"),
        ({"num_words": None}, "missing: one of num_tokens"),
        ({"bits_per_word": 3.0}, "say the same twice"),
        ({"log_likelihoods": None, "bits_per_byte": 3.0}, "missing: num_bytes"),
        ({"texts": ["a", "b"]}, "leave out num_words"),
        ({"texts": ["a"], "num_words": None}, "1 texts, but 2 log_likelihoods"),
    ]:
        with pytest.raises(ValueError, match=message):
            metric.compute(**{k: v for k, v in {**ok, **changed}.items() if v})
    with pytest.raises(TypeError, match="not one string"):
        metric.compute(texts="to be")
