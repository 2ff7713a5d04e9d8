# Entropies by hand: (sum of scores - sum of distorted scores) / words.
test_cases = [
    {
        "log_scores": [-20.0, -30.0],
        "distorted": [[[-24.0], [-32.0], [-40.0]], [[-36.0], [-44.0], [-50.0]]],
        "num_words": [4, 6],
        "result": {
            "nats_per_word": {0.1: 1.0, 0.3: 2.6, 0.5: 4.0},
            "nats_per_sentence": {0.1: 5.0, 0.3: 13.0, 0.5: 20.0},
            "ratio": {0.1: 1.0, 0.3: 2.6, 0.5: 4.0},
        },
    },
    {  # two replicates a level: entropies 1.0 and 2.0, then 3.0 and 3.0
        "log_scores": [-10.0],
        "distorted": [[[-12.0, -14.0], [-16.0, -16.0], [-18.0, -18.0]]],
        "num_words": [2],
        "result": {
            "nats_per_word": {0.1: 1.5, 0.3: 3.0, 0.5: 4.0},
            "nats_per_word_replicate_stderr": {0.1: 0.5, 0.3: 0.0, 0.5: 0.0},
            "ratio": {0.1: 1.0, 0.3: 2.0, 0.5: 8 / 3},
        },
    },
]
