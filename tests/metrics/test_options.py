"""Options of all four metrics."""

import pytest


@pytest.mark.parametrize(
    ("metric", "given", "wrong", "near"),
    [
        (
            "contrastive_entropy",
            {"log_scores": [-10.0], "num_words": [4], "distorted": {0.1: [[-12.0]]}},
            "baselin",
            "baseline",
        ),
        ("contrastive_entropy", {"texts": ["a"], "scorer": len}, "replicate", "repl"),
        (
            "distortion_error",
            {"true_log_p": [-1.0], "model_log_p": [-2.0]},
            "num_bin",
            "num_bins",
        ),
        (
            "importance_perplexity",
            {"log_weights": [[-1.0]], "num_tokens": [1]},
            "confidense",
            "confidence",
        ),
        (
            "information_rate",
            {"num_words": [3]},
            "bits_per_wrod",
            "bits_per_word",
        ),
    ],
    indirect=["metric"],
)
def test_a_misspelt_option_is_named(metric, given, wrong, near):
    with pytest.raises(ValueError, match=f"input='{wrong}': .*did you mean {near}"):
        metric.compute(**given, **{wrong: 0.5})
    with pytest.raises(ValueError, match="input='log_w': expected one of"):
        metric.compute(**given, log_w=1)
