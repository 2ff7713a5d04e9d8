from math import log, sqrt

# By hand: the mean weights are 1/4 and 1/2, the products' mean 0.145.
test_cases = [
    {
        "log_weights": [[log(0.2), log(0.3)], [log(0.1), log(0.9)]],
        "num_tokens": [1, 2],
        "result": {
            "instance_level_perplexity": 2.0,
            "corpus_level_perplexity": 0.145 ** (-1 / 3),
            "certified_perplexity": 2.0 * 20 ** (1 / 3),
            "effective_sample_sizes": [0.5**2 / 0.13, 1 / 0.82],
            "draws_stderrs": [sqrt(0.13 / 0.25 - 0.5), sqrt(0.82 - 0.5)],
            "curve": {1: 0.02 ** (-1 / 3), 2: 2.0},
        },
    },
    {  # without latents all weights are p(x), and the levels agree
        "log_weights": [[log(1 / 8)] * 3],
        "num_tokens": [3],
        "result": {
            "instance_level_perplexity": 2.0,
            "instance_level_perplexity_draws_stderr": 0.0,
            "corpus_level_perplexity": 2.0,
            "effective_sample_sizes": [3.0],
        },
    },
]
