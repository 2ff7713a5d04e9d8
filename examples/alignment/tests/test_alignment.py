"""The laws of lm_latent_eval, and the forward algorithm as the truth."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from latent_alignment import EMPTY, Alignment, AlignmentConfig
from latent_alignment.__main__ import write

import lm_latent_eval
from lm_latent_eval.extend import Case, laws

GIVEN = (5, 4, 1)


def tiny() -> Case:
    """Five words and three of them given, in float64."""
    model = Alignment(AlignmentConfig(vocab_size=6, longest_jump=2)).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(0, 0.7, generator=generator)

    def every_alignment(text: list[int]) -> torch.Tensor:
        places = range(len(GIVEN) + 1)
        return torch.tensor([[*itertools.product(places, repeat=len(text))]])

    return Case(
        model.eval(),
        every_alignment,
        words=(1, 4, 5),
        proposals=model.proposal_names,
        given=GIVEN,
    )


@pytest.mark.parametrize("law", laws(tiny()), ids=str)
def test_it_keeps_the_law(law):
    law()


def forward(model: Alignment, x: list[int], y: list[int]) -> float:
    """Log p(y | x), a matrix a word: none of the model's own sums."""
    places, most = range(len(x) + 1), len(model.jumps) // 2
    width = [[max(-most, min(b - a, most)) + most for b in places] for a in places]
    jumps = model.jumps.double().exp()[torch.tensor(width)]
    jumps /= jumps.sum(-1, keepdim=True)
    words = model.translations.double().exp()[[EMPTY, *x]]
    words[:, [0, 2]] = 0  # padding and the start
    words /= words.sum(-1, keepdim=True)
    reached = torch.eye(len(places), dtype=torch.float64)[0]
    for word in y:
        reached = (reached @ jumps) * words[:, word]
    return math.log(reached.sum())


PAIRS = [
    ("das haus ist klein", "the house is small"),
    ("die katze ist sehr alt", "the cat is very"),
    ("das haus", "house the"),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alignment")
    write(folder)
    return lm_latent_eval.load(folder, device="cpu")


def test_translations_have_the_probability_of_the_forward_algorithm(opened):
    read, model = opened.checkpoint.tokenizer, opened.checkpoint.model
    contexts, texts = zip(*PAIRS, strict=True)
    estimates = opened.log_likelihood(
        [f" {text}" for text in texts],
        contexts=list(contexts),
        estimator="beam",
        num_samples=6**4,  # every alignment
    )
    for x, y, estimate in zip(contexts, texts, estimates, strict=True):
        exact = forward(model, read(x).ids, read(y).ids)
        assert estimate.log_evidence == pytest.approx(exact, abs=1e-5)


def test_the_default_says_when_it_is_exact(opened):
    """What is given has no probability, so that no prefix is subtracted."""
    read, model = opened.checkpoint.tokenizer, opened.checkpoint.model
    few, many = (
        opened.log_likelihood([y], contexts=[x])[0] for x, y in (PAIRS[2], PAIRS[1])
    )
    assert str(few.bound) == "exact"
    assert str(many.bound) == "stochastic lower"
    for (x, y), found in ((PAIRS[2], few), (PAIRS[1], many)):
        exact = forward(model, read(x).ids, read(y).ids)
        assert found.log_evidence == pytest.approx(exact, abs=1e-2)


def test_what_is_written_depends_on_what_is_given(opened):
    greedy = {"max_tokens": 4, "sampling_temperature": 0.0}
    written = opened.generate(["das haus ist klein", "die katze ist alt"], **greedy)
    assert [text.split() for text in written] == [
        ["the", "house", "is", "small"],
        ["the", "cat", "is", "old"],
    ]


def test_it_needs_what_is_translated(opened):
    with pytest.raises(ValueError, match="put the sentence that is translated before"):
        opened.log_likelihood(["the house"])
