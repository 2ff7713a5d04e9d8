from math import log

# A fair die, ten rolls in two sentences; then "a red fox." with probability 0.0469.
test_cases = [
    {
        "log_likelihoods": [10 * log(1 / 6)],
        "num_tokens": [10],
        "num_words": [10],
        "num_characters": [20],
        "num_bytes": [20],
        "num_sentences": [2],
        "result": {
            "word_perplexity": 6.0,
            "bits_per_word": log(6) / log(2),
            "character_perplexity": 6**0.5,
            "nats_per_sentence": 5 * log(6),
        },
    },
    {
        "log_likelihoods": [log(0.4) + log(0.27), log(0.55) + log(0.79)],
        "num_tokens": [2, 2],
        "num_words": [2, 1],
        "num_characters": [6, 4],
        "num_bytes": [6, 4],
        "num_sentences": [1, 0],
        "result": {"token_perplexity": (0.4 * 0.27 * 0.55 * 0.79) ** (-1 / 4)},
    },
]
