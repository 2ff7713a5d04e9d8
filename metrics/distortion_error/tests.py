# Errors by hand: eleven times -1/2, then eleven times +1/4; 22 sequences in two bins.
test_cases = [
    {
        "true_log_p": [-1.0] * 11 + [-3.0] * 11,
        "model_log_p": [-1.5] * 11 + [-2.75] * 11,
        "result": {
            "mean_error": -0.125,
            "share_underestimated": 0.5,
            "share_stderr": (0.25 / 22) ** 0.5,
            "left_out": 0,
            "bins": [
                {
                    "count": 11,
                    "mean_error": 0.25,
                    "lower": 0.25,
                    "upper": 0.25,
                    "monte_carlo_stderr": 0,
                    "underestimates": False,
                },
                {
                    "count": 11,
                    "mean_error": -0.5,
                    "lower": -0.5,
                    "upper": -0.5,
                    "estimator_bias": 0,
                    "underestimates": True,
                },
            ],
        },
    },
]
