"""Networks of every kind are read as they were trained, or refused."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BitsAndBytesConfig,
    DiffusionGemmaConfig,
)

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.networks.masked import probe
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests.tiny_checkpoint import rolling
from tests.wrappers.mdm import own_code, tiny

# peft asks networks what transformers will not say for ever.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

TEXT = "the fox saw Ada"
TOKENS = (5, 6, 7, 8)


def opened(directory, **how):
    """Open a directory as ``lm_eval`` does."""
    more = {"device": "cpu", "trust_remote_code": True, "estimator": "exact"}
    return LatentMDM(pretrained=str(directory), **more, **how)


def scored(lm):
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    return found


def exact(model, before=(), after=()):
    """Log p of the text under a network, from all its orders."""
    return tiny.Truth(
        tiny.denoiser(model), tiny.TargetTokens(before, TOKENS, after)
    ).exact


def written(folder, network):
    """Write a network with its tokenizer."""
    network.model.save_pretrained(folder)
    network.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("framed", [False, True])
def test_masked_lms_of_transformers(kind, framed):
    network = tiny.network(kind, framed=framed)
    marks = ((tiny.BEGIN,), (tiny.END,)) if framed else ()
    scorer = MaskedDiffusion(network).scorer({"estimator": "exact"}, quiet=True)
    (answer,) = scorer.score_texts([Query(0, "text", TEXT)])
    wanted = exact(network.model, *marks)
    assert answer.estimate.log_evidence == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", ["llada", "mdlm", "Dream"])
def test_networks_with_code_of_their_own(kind, tmp_path):
    """Texts of Dream begin with a token that gives the scores of their first one."""
    lm = opened(own_code.write(tmp_path, kind))
    assert lm.fingerprint["logit_shift"] == int(kind == "Dream")
    assert lm.fingerprint["max_length"] == 20
    before = (tiny.BEGIN,) * (kind == "Dream")
    assert scored(lm) == pytest.approx(exact(None, before), abs=1e-9)
    with pytest.raises(ValueError, match="trust_remote_code"):
        LatentMDM(pretrained=str(tmp_path), device="cpu")


def test_shifted_scores_need_a_token_before_the_first(tmp_path):
    directory = own_code.write(tmp_path, "Dream")
    tiny.tokenizer().save_pretrained(directory)
    with pytest.raises(ValueError, match=r"logit_shift=1: .* give prefix_token_id"):
        opened(directory)
    lm = opened(directory, prefix_token_id=tiny.BEGIN)
    assert scored(lm) == pytest.approx(exact(None, (tiny.BEGIN,)), abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        # Networks of ``model_type`` Dream exist whose scores are not shifted.
        ("Dream", {"architectures": ["DreamForCausalLM"]}, r"give logit_shift=0 .* or"),
        ("mdlm", {"time_conditioning": True}, "time_conditioning: the network's scor"),
        ("unheard_of", {"mask": False}, "has a token that masks: give mask_token"),
        *(
            ("unheard_of", uniform, r"uniform-state .* nor p\(x \| order\) exist")
            for uniform in ({"graph": {"type": "uniform"}}, {"diffusion": "uniform"})
        ),
        ("gemma", {}, "uniform-state diffusion"),
    ],
    ids=str,
)
def test_what_is_not_read_is_said(kind, more, said, tmp_path):
    if kind == "gemma":  # a configuration of transformers
        DiffusionGemmaConfig().save_pretrained(tmp_path)
        tiny.tokenizer().save_pretrained(tmp_path)
    else:
        own_code.write(tmp_path, kind, **more)
    with pytest.raises(ValueError, match=said):
        opened(tmp_path)


def test_what_nobody_says_is_asked_for(tmp_path):
    directory = own_code.write(tmp_path, "unheard_of", mask=False)
    with pytest.raises(ValueError, match=r"give logit_shift=0 .* or logit_shift=1"):
        opened(directory, mask_token="[MASK]")
    lm = opened(directory, mask_token="[MASK]", logit_shift=0)
    assert scored(lm) == pytest.approx(exact(None), abs=1e-9)


def test_positions_that_begin_after_padding_are_counted(tmp_path):
    """RoBERTa's table of 24 has places for 23 tokens, where padding is token 0."""
    network = tiny.network("roberta")
    written(tmp_path, network)
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
        opened(tmp_path, max_length=24)


def test_a_function_that_is_no_denoiser_is_refused():
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="f is a causal model"):
        probe(lambda tokens: tokens[..., None].double().cumsum(1), 1, cpu, "f")
    with pytest.raises(ValueError, match=r"scores of shape \(B, T, V\); got \(2, 3\)"):
        probe(lambda tokens: tokens, 1, cpu, "f")


# -- adapters and quantized weights ---------------------------------------------------


def adapter(model, directory):
    """Write a LoRA of large weights for a network; return the network with it."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(generator=generator)
    # Without asking the hub for the vocabulary of a network that has no name there.
    adapted.save_pretrained(directory, save_embedding_layers=False)
    return adapted.double().eval().requires_grad_(False)


def test_an_adapter_is_part_of_the_network(tmp_path):
    adapted = adapter(tiny.network("bert").model, tmp_path / "adapter")
    directory = written(tmp_path, tiny.network("bert"))
    lm, plain = opened(directory, peft=str(tmp_path / "adapter")), opened(directory)
    # Adapters compute in float32.
    rounding = 64 * torch.finfo(torch.float32).eps
    assert scored(lm) == pytest.approx(exact(adapted), abs=rounding)
    assert scored(lm) != pytest.approx(scored(plain), abs=1e-3), "premise: it matters"
    assert lm.fingerprint["checkpoint"] != plain.fingerprint["checkpoint"]


@pytest.mark.parametrize(("kind", "shift"), [("mdlm", 0), ("Dream", 1)])
def test_an_adapter_hides_nothing_of_its_network(kind, shift, tmp_path):
    """What it is called with (a time, MDLM), and whose scores a place has (Dream)."""
    directory = own_code.write(tmp_path, kind, vocab_size=len(tiny.VOCABULARY))
    adapter(opened(directory)._loaded.model, tmp_path / "adapter")
    lm = opened(directory, peft=str(tmp_path / "adapter"))
    assert lm.fingerprint["logit_shift"] == shift
    assert scored(lm)


@pytest.mark.parametrize("bits", ["load_in_8bit", "load_in_4bit"])
@pytest.mark.filterwarnings("ignore:MatMul8bitLt", "ignore:You passed `quantization_")
def test_a_quantized_directory_is_read(bits, tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    size = tiny.SIZE | {"hidden_size": 64, "intermediate_size": 64}
    model = tiny.lopsided(BertForMaskedLM(BertConfig(**size)), spread=0.3).float()
    model.save_pretrained(plain)
    model = BertForMaskedLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**{bits: True}), device_map="cpu"
    )
    model.save_pretrained(quantized)
    for folder in (plain, quantized):
        tiny.tokenizer().save_pretrained(folder)
    lm, full = opened(quantized), opened(plain)
    rounding = 64 * torch.finfo(torch.float32).eps
    assert scored(lm) == pytest.approx(exact(model), abs=rounding)
    assert scored(lm) != pytest.approx(scored(full), abs=1e-4), "premise: quantized"
    assert lm.fingerprint["checkpoint"] != full.fingerprint["checkpoint"]
    with pytest.raises(ValueError, match="load_in_4bit: transformers 5 takes this arg"):
        opened(plain, load_in_4bit=True)
