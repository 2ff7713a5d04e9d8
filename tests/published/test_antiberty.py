"""AntiBERTy, a BERT of antibody sequences, through ``latent_mdm``."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from tests.published.folders import ANTIBERTY, HEAVY, LIGHT, antibody, spaced
from tests.tiny_checkpoint import conditional, rolling

pytestmark = pytest.mark.slow
START, END = HEAVY[:100], HEAVY[100:104]


@pytest.fixture(scope="module")
def folder(published, tmp_path_factory):
    models = published(ANTIBERTY)
    return antibody(models, "AntiBERTy_md_smooth", tmp_path_factory.mktemp("antiberty"))


@pytest.fixture(scope="module")
def opened(folder):
    def make(**options):
        return LatentMDM(pretrained=str(folder), device="cpu", **options)

    return make


@pytest.fixture
def scores(packages):
    """The package's own model: log-probabilities of a place, the mask aside."""
    packages("antiberty")
    import antiberty

    runner = antiberty.AntiBERTyRunner()

    @torch.no_grad()
    def log_p(residues: list[str], place: int) -> torch.Tensor:
        text = " ".join("[MASK]" if r == "_" else r for r in residues)
        tokens = runner.tokenizer(text, return_tensors="pt").input_ids
        logits = runner.model(input_ids=tokens).prediction_logits[0, place + 1]
        logits[runner.tokenizer.mask_token_id] = -math.inf
        return logits.double().log_softmax(-1)

    return log_p, runner


def test_one_residue_is_what_the_package_says(opened, scores):
    log_p, runner = scores
    before, residue = HEAVY[:60], HEAVY[60]
    asked = conditional((spaced(before), f" {residue}"))
    [(found, _)] = opened().loglikelihood(asked)
    wanted = log_p([*before, "_"], 60)[runner.tokenizer.vocab[residue]]
    assert found == pytest.approx(wanted.item(), abs=1e-4)


def test_the_exact_sum_is_that_over_all_orders(opened, scores):
    log_p, runner = scores
    asked = conditional((spaced(START), f" {spaced(END)}"))
    [(found, _)] = opened(estimator="exact").loglikelihood(asked)
    of_orders = []
    for order in itertools.permutations(range(len(END))):
        residues, total = [*START, *"_" * len(END)], 0.0
        for place in order:
            at = len(START) + place
            token = runner.tokenizer.vocab[END[place]]
            total += log_p(residues, at)[token].item()
            residues[at] = END[place]
        of_orders.append(total)
    wanted = torch.tensor(of_orders).logsumexp(0).item() - math.log(len(of_orders))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_estimators_agree_on_ten_residues(opened):
    asked = conditional((spaced(HEAVY[:96]), f" {spaced(HEAVY[96:106])}"))
    [(exact, _)] = opened(estimator="exact").loglikelihood(asked)
    [(drawn, _)] = opened(estimator="is", num_samples=60).loglikelihood(asked)
    [(bound, _)] = opened(estimator="elbo", num_samples=256).loglikelihood(asked)
    drawn_stderr = drawn.estimate.draws_stderr
    assert abs(float(drawn) - float(exact)) < 5 * drawn_stderr
    assert float(bound) < float(exact) + 5 * bound.estimate.draws_stderr


def test_whole_domains(opened):
    """2.5 nats a residue or less, of 20 that would be 3.0 if all were alike."""
    texts = [spaced(HEAVY), spaced(LIGHT)]
    bounds = opened(num_samples=64).loglikelihood_rolling(rolling(*texts))
    path = opened(estimator="path").loglikelihood_rolling(rolling(*texts))
    for text, bound, one in zip((HEAVY, LIGHT), bounds, path, strict=True):
        assert bound.estimate.num_tokens == one.estimate.num_tokens == len(text)
        assert -math.log(20) * len(text) < float(one) < 0
        assert bound.estimate.draws_stderr / len(text) < 0.3
