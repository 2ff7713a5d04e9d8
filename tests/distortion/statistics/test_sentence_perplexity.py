import math
import statistics

import pytest
import torch

from lm_latent_eval.distortion.statistics import mean_sentence_perplexity
from lm_latent_eval.estimators import perplexity


def test_mean_and_error_by_hand():
    log_p = [-4.0, -9.0, -2.5, -30.0]
    num_tokens = [2, 3, 1, 11]

    mean, stderr = mean_sentence_perplexity(
        torch.tensor(log_p, dtype=torch.float64), torch.tensor(num_tokens)
    )

    each = [math.exp(-p / t) for p, t in zip(log_p, num_tokens, strict=True)]
    assert mean == pytest.approx(statistics.fmean(each))
    assert stderr == pytest.approx(statistics.stdev(each) / 2)
    assert mean != pytest.approx(perplexity(sum(log_p), sum(num_tokens)), rel=0.05)


def test_one_bad_sentence_is_enough():
    num_tokens = torch.tensor([1, 1, 1])
    for bad in (-math.inf, -800.0):
        log_p = torch.tensor([-1.0, bad, -1.0])
        assert mean_sentence_perplexity(log_p, num_tokens) == (math.inf, math.inf)


def test_one_sentence_has_no_standard_error():
    found = mean_sentence_perplexity(torch.tensor([0.0]), torch.tensor([5]))
    assert found == (1, math.inf)


def test_refusals():
    ok, tokens = torch.tensor([-1.0, -2.0]), torch.tensor([1, 2])
    with pytest.raises(ValueError, match="no sentences"):
        mean_sentence_perplexity(ok[:0], tokens[:0])
    with pytest.raises(ValueError, match=r"log_p\[0\] is 1.0; expected at most 0"):
        mean_sentence_perplexity(-ok, tokens)
    with pytest.raises(ValueError, match=r"log_p\[0\] is nan"):
        mean_sentence_perplexity(ok * math.nan, tokens)
    with pytest.raises(ValueError, match=r"num_tokens\[0\] is 0"):
        mean_sentence_perplexity(ok, tokens - 1)
    with pytest.raises(ValueError, match=r"num_tokens must have shape \(2,\)"):
        mean_sentence_perplexity(ok, tokens[:1])
    with pytest.raises(TypeError, match="integers"):
        mean_sentence_perplexity(ok, tokens.double())
