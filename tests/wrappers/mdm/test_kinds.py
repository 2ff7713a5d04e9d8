"""Networks of every kind are read as they were trained, or refused."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.networks.masked import probe
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
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
    return tiny.Truth(tiny.denoiser(), tiny.TargetTokens((), TOKENS)).exact


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("framed", [False, True])
def test_masked_lms_of_transformers(kind, framed):
    network = tiny.network(kind, framed=framed)
    marks = ((tiny.BEGIN,), (tiny.END,)) if framed else ((), ())
    target = tiny.TargetTokens(marks[0], TOKENS, marks[1])
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
    assert lm.fingerprint["max_length"] == 20
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    assert found == pytest.approx(truth, abs=1e-9)


def test_shifted_scores_are_put_in_their_places(tmp_path):
    """A text begins with a token that gives the scores of its first one (Dream)."""
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
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    wanted = tiny.Truth(plain, tiny.TargetTokens((tiny.BEGIN,), TOKENS)).exact
    assert found == pytest.approx(wanted, abs=1e-9)


def test_shifted_scores_need_a_token_before_the_first(tmp_path):
    directory = own_code.write(tmp_path, "Dream")
    tiny.tokenizer().save_pretrained(directory)
    how = {"pretrained": str(directory), "device": "cpu", "trust_remote_code": True}
    with pytest.raises(ValueError, match=r"logit_shift=1: .* give prefix_token_id"):
        LatentMDM(**how)
    lm = LatentMDM(**how, prefix_token_id=tiny.BEGIN, estimator="exact")
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    wanted = tiny.Truth(tiny.denoiser(), tiny.TargetTokens((tiny.BEGIN,), TOKENS)).exact
    assert found == pytest.approx(wanted, abs=1e-9)


def test_a_name_that_others_took_says_nothing_of_a_shift(tmp_path):
    """Networks of ``model_type`` Dream exist whose scores are not shifted."""
    directory = own_code.write(tmp_path, "Dream", architectures=["DreamForCausalLM"])
    with pytest.raises(ValueError, match=r"give logit_shift=0 .* or logit_shift=1"):
        LatentMDM(pretrained=str(directory), device="cpu", trust_remote_code=True)


def test_a_network_that_looks_at_a_time_is_refused(tmp_path):
    directory = own_code.write(tmp_path, "mdlm", time_conditioning=True)
    with pytest.raises(ValueError, match="time_conditioning: the network's scores"):
        LatentMDM(pretrained=str(directory), device="cpu", trust_remote_code=True)


def test_positions_that_begin_after_padding_are_counted(tmp_path):
    """RoBERTa's table of 24 has places for 23 tokens, where padding is token 0."""
    network = tiny.network("roberta")
    network.model.save_pretrained(tmp_path)
    network.tokenizer.save_pretrained(tmp_path)
    ids = torch.full((1, 24), 5)
    network.model(input_ids=ids[:, 1:])
    with pytest.raises((IndexError, RuntimeError)):
        network.model(input_ids=ids)
    assert Network.of(network.model, network.tokenizer).positions == 23
    lm = LatentMDM(pretrained=str(tmp_path), device="cpu", num_samples=8)
    assert lm.fingerprint["max_length"] == 23
    (answer,) = lm.loglikelihood_rolling(rolling(" ".join([TEXT] * 7)))
    assert answer.estimate.num_tokens == 28
    with pytest.raises(ValueError, match=r"max_length=24: .* positions for 23 tokens"):
        LatentMDM(pretrained=str(tmp_path), device="cpu", max_length=24)


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
