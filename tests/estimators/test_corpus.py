import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_latent_eval.estimators import (
    corpus_effective_sample_size,
    corpus_log_evidence,
    corpus_perplexity,
    corpus_stderr,
    instance_perplexity,
    log_evidence,
    stacked_weights,
    stderr,
)

LOG_Q = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64).log()
LOG_JOINT = torch.tensor(  # two inputs, three latents each
    [[0.1, 0.15, 0.02], [0.3, 0.0, 0.05]], dtype=torch.float64
).log()


def normal(*shape, seed, sd=1.0):
    generator = torch.Generator().manual_seed(seed)
    return sd * torch.randn(shape, generator=generator, dtype=torch.float64)


# The two levels


def test_levels_on_a_thousand_inputs():
    """The simulation that shows what multiplying a corpus's weights costs."""
    num_inputs, num_samples, replicates = 1000, 100, 24
    instance, corpus, elbo, corpus_ess = [], [], [], []
    for seed in range(replicates):
        log_w = normal(num_inputs, num_samples, seed=seed) - 0.5  # log p(x) = 0
        instance.append(log_evidence(log_w).mean().item())
        corpus.append(corpus_log_evidence(log_w).item() / num_inputs)
        elbo.append(log_w.mean().item())
        corpus_ess.append(corpus_effective_sample_size(log_w).item())

    for found, published in ((instance, -0.006), (corpus, -0.438), (elbo, -0.499)):
        found = torch.tensor(found, dtype=torch.float64)
        spread = found.std().item()  # the published numbers are one replicate each
        assert spread < 0.03, "premise: precise enough to tell the levels apart"
        assert abs(found.mean().item() - published) < 4 * spread
    assert max(corpus) < min(instance) - 0.3
    assert sum(corpus_ess) / replicates < 3

    mean, spread = torch.tensor(elbo).mean(), torch.tensor(elbo).std()
    assert abs(mean + 0.5) < 5 * spread / math.sqrt(replicates)


def test_corpus_level_is_unbiased_by_enumeration():
    draws = torch.cartesian_prod(*[torch.arange(3)] * 4).view(-1, 2, 2)  # (.., N, K)
    chance = LOG_Q[draws].sum((-2, -1)).exp()
    log_w = (LOG_JOINT - LOG_Q)[torch.arange(2)[:, None], draws]

    estimates = torch.stack([corpus_log_evidence(rows) for rows in log_w])

    exact = LOG_JOINT.logsumexp(-1).sum()
    assert (chance * (estimates - exact).exp()).sum() == pytest.approx(1, abs=1e-12)


@settings(deadline=None)
@given(
    log_p=st.lists(st.floats(-50, 0), min_size=1, max_size=20),
    num_samples=st.integers(1, 5),
)
def test_levels_agree_without_latents(log_p, num_samples):
    log_w = torch.tensor(log_p, dtype=torch.float64)[:, None].expand(-1, num_samples)

    by_instance = instance_perplexity(log_evidence(log_w), num_tokens=20)
    by_corpus = corpus_perplexity(log_w, num_tokens=20)

    assert by_corpus == pytest.approx(by_instance, rel=1e-12)


def test_one_input_is_its_own_corpus():
    log_w = normal(1, 30, seed=0)

    assert corpus_log_evidence(log_w) == log_evidence(log_w[0])
    assert corpus_stderr(log_w) == stderr(log_w[0])


def test_perplexities_by_hand():
    assert instance_perplexity(
        torch.tensor([0.5, 0.1, 0.02], dtype=torch.float64).log(), 3
    ) == pytest.approx(1000 ** (1 / 3))
    log_w = torch.tensor([[0.5, 0.1], [0.2, 0.4]], dtype=torch.float64).log()
    assert corpus_perplexity(log_w, torch.tensor([3, 1])) == pytest.approx(
        0.07 ** (-1 / 4)
    )


def test_corpus_level_takes_rows_of_the_same_length_only():
    rows = [torch.zeros(4), torch.zeros(4), torch.zeros(5)]

    assert torch.equal(stacked_weights(rows[:2]), torch.zeros(2, 4).double())
    for function in (corpus_log_evidence, corpus_effective_sample_size, corpus_stderr):
        with pytest.raises(ValueError, match=r"log_w\[2\] has 5 samples .* same K"):
            function(rows)
    with pytest.raises(ValueError, match="same K"):
        corpus_perplexity(rows, 3)


def test_weights_of_a_corpus_are_checked():
    with pytest.raises(ValueError, match="at least one input"):
        stacked_weights([])
    with pytest.raises(ValueError, match=r"log_w\[0\] must have shape \(K,\)"):
        stacked_weights(torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match=r"log_w\[0\] must have shape \(K,\)"):
        stacked_weights(torch.zeros(3))
    with pytest.raises(TypeError, match=r"log_w\[1\] must be a floating-point tensor"):
        stacked_weights([torch.zeros(3), [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"log_w\[1, 0\] is nan"):
        stacked_weights([torch.zeros(1), torch.tensor([math.nan])])


def test_products_can_vanish_where_no_input_does():
    log_w = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()

    assert log_evidence(log_w).isfinite().all()
    assert corpus_log_evidence(log_w) == -math.inf
    assert corpus_effective_sample_size(log_w) == 0
    with pytest.raises(ValueError, match="all 2 products of 2 inputs' weights"):
        corpus_perplexity(log_w, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_missing_input_is_an_error_that_names_it(value):
    log_evidences = torch.tensor([-3.0, -2.0, value])

    with pytest.raises(ValueError, match=rf"log_evidences\[2\] is {value}"):
        instance_perplexity(log_evidences, 10)


def test_other_mistakes_are_named():
    log_evidences = torch.tensor([-3.0, -2.0])
    with pytest.raises(ValueError, match="num_tokens must be at least 1 in all; got 0"):
        instance_perplexity(log_evidences, 0)
    with pytest.raises(ValueError, match=r"num_tokens\[1\] is -2"):
        instance_perplexity(log_evidences, torch.tensor([5, -2]))
    with pytest.raises(ValueError, match=r"log_evidences must have shape \(N,\)"):
        instance_perplexity(torch.zeros(0), 5)
    with pytest.raises(TypeError, match="log_evidences must be a floating-point"):
        instance_perplexity([-3.0], 5)
