"""The laws of lm_latent_eval, and the forward algorithm as the truth."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from latent_hmm import HMM, HMMConfig
from latent_hmm.__main__ import write

import lm_latent_eval
from lm_latent_eval.extend import END, Case, laws


def tiny() -> Case:
    """Three states and five words, in float64."""
    model = HMM(HMMConfig(vocab_size=6, num_states=3)).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.normal_(0, 0.7, generator=generator)

    def every_walk(text: list[int]) -> torch.Tensor:
        return torch.tensor([[*itertools.product(range(3), repeat=len(text))]])

    return Case(
        model.eval(),
        every_walk,
        words=(1, 4, 5),
        proposals=model.proposal_names,
        reads_on=("adapted", "prior"),
    )


@pytest.mark.parametrize("law", laws(tiny()), ids=str)
def test_it_keeps_the_law(law):
    law()


def forward(model: HMM, ids: list[int]) -> float:
    """Log p(x), a matrix a word: none of the model's own sums."""
    transitions, emissions = model.transitions.exp(), model.emissions.exp()
    transitions /= transitions.sum(-1, keepdim=True)
    emissions[:, [0, 2]] = 0  # padding and the start
    emissions /= emissions.sum(-1, keepdim=True)
    reached = transitions[-1]
    for place, word in enumerate(ids):
        if place:
            reached = reached @ transitions[:-1]
        reached = reached * emissions[:, word]
    return math.log(reached.sum())


TEXTS = ["the cat saw a dog", "", "a dog ran the cat the dog"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hmm")
    write(folder)
    return lm_latent_eval.load(folder, device="cpu")


def test_strings_have_the_probability_of_the_forward_algorithm(opened):
    checkpoint = opened.checkpoint
    assert checkpoint.name == "hmm"
    estimates = opened.log_likelihood(TEXTS, estimator="is", num_samples=5)
    for text, estimate in zip(TEXTS, estimates, strict=True):
        ids = [*checkpoint.tokenizer(text).ids, END]
        exact = forward(checkpoint.model, ids)
        assert estimate.log_evidence == pytest.approx(exact, abs=1e-5)
        assert estimate.effective_sample_size == pytest.approx(5), "the posterior is q"


def test_continuations_and_generation(opened):
    checkpoint = opened.checkpoint
    every_walk = {"estimator": "beam", "num_samples": 3**5}
    [found] = opened.log_likelihood([" a dog"], contexts=["the cat saw"], **every_walk)
    whole = checkpoint.tokenizer("the cat saw a dog").ids
    model = checkpoint.model
    exact = forward(model, whole) - forward(model, whole[:3])
    assert found.log_evidence == pytest.approx(exact, abs=1e-5)
    written = opened.generate(["the"] * 5, max_tokens=4, seed=2)
    assert 1 <= max(len(text.split()) for text in written) <= 4
