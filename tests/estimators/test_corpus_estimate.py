import math

import pytest
import torch

from lm_latent_eval.estimators import (
    Bound,
    CorpusEstimate,
    MissedSupportError,
    certified_perplexity,
    corpus_effective_sample_size,
    corpus_perplexity,
    corpus_stderr,
    effective_sample_size,
    filter_log_weights,
    instance_perplexity,
    log_evidence,
    log_grid,
    stderr,
)

TOKENS = torch.tensor([5, 9, 2])


def weights(samples=40):
    generator = torch.Generator().manual_seed(1)
    log_w = torch.randn(3, samples, generator=generator, dtype=torch.float64)
    return log_w - torch.tensor([[20.0], [35.0], [4.0]])


def test_everything_agrees_with_its_function():
    log_w = weights()

    found = CorpusEstimate.of(
        list(log_w), TOKENS, confidence=0.9, num_configurations=3, multiplicity=2
    )

    evidences = log_evidence(log_w)
    assert found.instance.value == pytest.approx(instance_perplexity(evidences, 16))
    errors = stderr(log_w).norm().item()
    errors = math.hypot(errors, errors**2 / 2)
    assert found.instance.stderr is None, "draws do not know what they miss"
    expected = found.instance.value * errors / 16
    assert found.instance.draws_stderr == pytest.approx(expected)
    assert found.corpus.value == pytest.approx(corpus_perplexity(log_w, 16))
    assert found.corpus.draws_stderr == pytest.approx(
        found.corpus.value * corpus_stderr(log_w).item() / 16
    )
    assert found.corpus_effective_sample_size == pytest.approx(
        corpus_effective_sample_size(log_w).item()
    )
    assert found.certified == pytest.approx(
        certified_perplexity(evidences, 16, 0.9, num_configurations=3, multiplicity=2)
    )
    assert [e.effective_sample_size for e in found.estimates] == pytest.approx(
        effective_sample_size(log_w).tolist()
    )
    assert [e.num_tokens for e in found.estimates] == [5, 9, 2]
    assert {e.bound for e in found.estimates} == {Bound.STOCHASTIC_LOWER}
    assert [k for k, _ in found.curve] == list(log_grid(40))
    for k, perplexity in found.curve:
        first = log_evidence(log_w[:, :k]).sum().item()
        assert perplexity == pytest.approx(math.exp(-first / 16))
    assert found.curve[-1][1] == pytest.approx(found.instance.value)


def test_corpus_level_takes_the_draws_that_every_input_has():
    log_w = weights()
    ragged = [log_w[0], log_w[1, :7], log_w[2, :30]]

    found = CorpusEstimate.of(ragged, TOKENS)

    assert found.corpus_num_samples == 7
    assert found.corpus.value == pytest.approx(corpus_perplexity(log_w[:, :7], 16))
    whole = [log_evidence(row).item() for row in ragged]
    assert found.instance.value == pytest.approx(math.exp(-sum(whole) / 16))
    assert found.curve[-1][0] == 7


def test_products_may_all_be_zero():
    log_w = [torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()]

    found = CorpusEstimate.of(log_w, torch.tensor([1, 1]))

    assert found.corpus is None and found.corpus_effective_sample_size == 0
    assert found.instance.value == pytest.approx(2)
    assert found.curve == ((1, None), (2, pytest.approx(2)))


def test_a_perplexity_that_no_float_holds():
    rare = torch.tensor([-800.0, -900.0], dtype=torch.float64)
    found = CorpusEstimate.of([rare], torch.tensor([1]))
    assert found.instance.value == found.corpus.value == math.inf
    assert found.certified == found.estimates[0].perplexity == math.inf
    assert found.curve == ((1, math.inf), (2, math.inf))
    assert instance_perplexity(rare[:1], 1) == corpus_perplexity([rare], 1) == math.inf
    sure = CorpusEstimate.of([rare[:1].expand(2)], torch.tensor([1]))
    assert sure.instance.draws_stderr == sure.corpus.draws_stderr == 0


def test_filters_sum_their_increments():
    increments = torch.tensor([[0.5, 0.2], [0.1, 0.0]]).log()
    assert filter_log_weights(increments).exp().tolist() == pytest.approx([0.1, 0.0])
    with pytest.raises(ValueError, match=r"\[1\] is nan"):
        filter_log_weights(torch.tensor([0.0, math.nan]))


def test_errors_name_the_input():
    ok, zero = torch.tensor([0.0]), torch.tensor([-math.inf])
    ones = torch.tensor([1, 1])
    with pytest.raises(MissedSupportError, match="input 1: the proposal misses"):
        CorpusEstimate.of([ok, zero], ones)
    with pytest.raises(ValueError, match=r"input 1: log_w\[0\] is nan"):
        CorpusEstimate.of([ok, torch.tensor([math.nan])], ones)
    with pytest.raises(ValueError, match="no input"):
        CorpusEstimate.of([], torch.tensor([]))
    with pytest.raises(ValueError, match="one count an input"):
        CorpusEstimate.of([ok, ok], torch.tensor([1, 1, 1]))
