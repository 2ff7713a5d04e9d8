"""What ``importance_perplexity`` takes, gives and refuses."""

import math
from pathlib import Path

import pytest

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from tests.metrics.conftest import of


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


@of("importance_perplexity")
def test_weights_of_filters_are_of_the_token_level(metric):
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
    assert found["instance_level_perplexity"] == pytest.approx(
        math.exp(-total / tokens)
    )
    assert found["certified_perplexity"] == pytest.approx(
        math.exp(-(total - math.log(4 / 0.05)) / tokens)
    )
    assert found["pareto_ks"] == pytest.approx([e.pareto_k for e in estimates])
    assert found["draws_stderrs"] == pytest.approx([e.draws_stderr for e in estimates])


@of("importance_perplexity")
def test_a_perplexity_that_no_float_holds(metric):
    found = metric.compute(log_weights=[[-800.0, -900.0]], num_tokens=[1])
    for level in ("instance", "corpus"):
        assert found[f"{level}_level_perplexity"] == math.inf
        assert found[f"{level}_level_perplexity_draws_stderr"] is None
    assert found["certified_perplexity"] == math.inf
    assert found["curve"] == {1: math.inf, 2: math.inf}
    assert found["log_likelihood"] == pytest.approx(-800 - math.log(2))
    sure = metric.compute(log_weights=[[-800.0, -800.0]], num_tokens=[1])
    assert sure["instance_level_perplexity_draws_stderr"] == 0
    assert sure["corpus_level_perplexity_draws_stderr"] == 0


@of("importance_perplexity")
def test_rows_that_came_one_by_one_are_checked_too(metric):
    metric.add_batch(log_weights=[[-1.0]], num_tokens=[1.5])
    with pytest.raises(ValueError, match=r"num_tokens\[0\] is 1.5"):
        metric.compute()


@of("importance_perplexity")
def test_importance_refusals(metric):
    ok = {"log_weights": [[-1.0, -2.0]], "num_tokens": [2]}
    metric.compute(**ok)
    for changed, message in [
        ({"log_weights": [[-math.inf]]}, "input 0: the proposal misses"),
        ({"log_weights": [[math.nan]]}, "input 0: .* is nan"),
        ({"log_weights": [[]]}, "input 0: .* K >= 1"),
        ({"num_tokens": [0]}, "num_tokens must be at least 1"),
        ({"num_tokens": [1, 2]}, "Mismatch"),
        ({"num_tokens": [1.5]}, r"num_tokens\[0\] is 1.5; expected a whole number"),
        ({"num_tokens": [math.nan]}, r"num_tokens\[0\] is nan"),
        ({"num_tokens": [None]}, r"num_tokens\[0\] is missing"),
        ({"log_weights": [[-1.0, None]]}, r"log_weights\[0\]\[1\] is missing"),
        ({"confidence": 1.0}, "confidence must be between"),
        ({"level": "corpus"}, "level must be instance or token"),
        ({"log_increments": [[[0.0]]]}, "log_increments replace"),
    ]:
        with pytest.raises(ValueError, match=message):
            metric.compute(**{**ok, **changed})
    with pytest.raises(ValueError, match=r"log_increments\[0\]\[0\]\[1\] is missing"):
        metric.compute(log_increments=[[[-1.0, None]]])
    with pytest.raises(ValueError, match=r"log_increments\[0\]: every filter"):
        metric.compute(log_increments=[[[-1.0], [-1.0, -1.0]]])


@of("importance_perplexity")
@pytest.mark.parametrize(
    "weights", [[[5.0, 6.0]], [[-3.0, -4.0], [5.0]], [[0.2] * 200], [[0.01, 0.01]]]
)
def test_weights_that_are_no_probabilities_are_refused(metric, weights):
    with pytest.raises(ValueError, match=rf"input {len(weights) - 1}: .*log p = .* ab"):
        metric.compute(log_weights=weights, num_tokens=[1] * len(weights))


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


@of("importance_perplexity")
def test_the_card_says_what_the_error_is(metric):
    """Its formula gives the number that is printed."""
    found = metric.compute(
        log_weights=[[-3, -3.5, -2.0], [-4.0, -4.2]], num_tokens=[4, 3]
    )
    errors = found["draws_stderrs"]
    in_nats = math.hypot(*errors, sum(e**2 for e in errors) / 2) / 7
    value = found["instance_level_perplexity"]
    assert found["instance_level_perplexity_draws_stderr"] == pytest.approx(
        value * in_nats, rel=1e-12
    )
    folder = lm_latent_eval.metric_path("importance_perplexity")
    card = Path(folder, "README.md").read_text("utf-8")
    assert "(Σ d² + (Σ d² / 2)²) / T" in card and "with standard error" not in card
