"""Networks of every kind are read as they were trained, or refused."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.denoiser import probe
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests.tiny_checkpoint import rolling
from tests.wrappers.mdm import own_code, tiny

TEXT = "the fox saw Ada"
TOKENS = (5, 6, 7, 8)


def exact(model: MaskedDiffusion, **how) -> float:
    scorer = model.scorer({"estimator": "exact", **how}, quiet=True)
    (answer,) = scorer.score_texts([Query(0, "text", TEXT)])
    return answer.estimate.log_evidence


@pytest.fixture(scope="module")
def truth():
    """Log p of the text under the tiny BERT, from all its orders."""
    return tiny.Truth(tiny.denoiser(), tiny.Target((), TOKENS)).exact


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("framed", [False, True])
def test_masked_lms_of_transformers(kind, framed):
    network = tiny.network(kind, framed=framed)
    marks = ((tiny.BEGIN,), (tiny.END,)) if framed else ((), ())
    target = tiny.Target(marks[0], TOKENS, marks[1])
    wanted = tiny.Truth(tiny.denoiser(network.model), target).exact
    assert exact(MaskedDiffusion(network)) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", ["llada", "mdlm"])
def test_networks_with_code_of_their_own(kind, tmp_path, truth):
    directory = own_code.write(tmp_path, kind)
    lm = LatentMDM(
        pretrained=str(directory),
        device="cpu",
        trust_remote_code=True,
        estimator="exact",
    )
    assert lm.fingerprint["logit_shift"] == 0
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    assert found == pytest.approx(truth, abs=1e-9)


def test_shifted_scores_are_put_in_their_places(tmp_path, truth):
    """But for the first place, which has the scores of its own token (Dream)."""
    directory = own_code.write(tmp_path, "Dream")
    lm = LatentMDM(
        pretrained=str(directory),
        device="cpu",
        trust_remote_code=True,
        estimator="exact",
    )
    assert lm.fingerprint["logit_shift"] == 1
    plain, dream = tiny.denoiser(), lm._scorer.denoiser
    tokens = torch.tensor([[5, 1, 7, 1, 1]])
    here, there = plain.scores(tokens), dream.scores(tokens)
    torch.testing.assert_close(there[:, 1:], here[:, 1:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there[:, 0], here[:, 1], rtol=1e-9, atol=1e-9)
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    wanted = tiny.Truth(dream, tiny.Target((), TOKENS)).exact
    assert found == pytest.approx(wanted, abs=1e-9)
    assert found != pytest.approx(truth, abs=1e-3), "premise: the first place differs"


def test_own_code_runs_only_when_asked(tmp_path):
    directory = own_code.write(tmp_path, "llada")
    with pytest.raises(ValueError, match="trust_remote_code"):
        LatentMDM(pretrained=str(directory), device="cpu")


def test_what_nobody_says_is_asked_for(tmp_path, truth):
    directory = own_code.write(tmp_path, "unheard_of", mask=False)
    how = {"device": "cpu", "trust_remote_code": True, "estimator": "exact"}
    with pytest.raises(ValueError, match="has a token that masks: give mask_token"):
        LatentMDM(pretrained=str(directory), **how)
    with pytest.raises(ValueError, match=r"give logit_shift=0 .* or logit_shift=1"):
        LatentMDM(pretrained=str(directory), mask_token="[MASK]", **how)
    lm = LatentMDM(pretrained=str(directory), mask_token="[MASK]", logit_shift=0, **how)
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    assert found == pytest.approx(truth, abs=1e-9)


def test_a_function_is_as_good_as_a_model(truth):
    inner = tiny.lopsided(tiny.KINDS["bert"]())
    model = MaskedDiffusion.of_function(
        lambda tokens: inner(input_ids=tokens).logits,
        tiny.tokenizer(),
        version="tiny-1",
        max_length=20,
    )
    assert exact(model) == pytest.approx(truth, abs=1e-9)
    assert model.scorer({}, quiet=True).fingerprint["checkpoint"] == "tiny-1"


def test_a_function_that_is_no_denoiser_is_refused():
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="f is a causal model"):
        probe(lambda tokens: tokens[..., None].double().cumsum(1), 1, cpu, "f")
    with pytest.raises(ValueError, match=r"scores of shape \(B, T, V\); got \(2, 3\)"):
        probe(lambda tokens: tokens, 1, cpu, "f")
