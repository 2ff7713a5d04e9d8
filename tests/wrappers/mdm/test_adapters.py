"""An adapter and quantized weights, loaded as ``--model hf`` does."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BitsAndBytesConfig

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from tests.tiny_checkpoint import rolling
from tests.wrappers.mdm import own_code, tiny

# peft asks networks what transformers will not say for ever.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

TEXT = "the fox saw Ada"
TOKENS = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    network = tiny.network("bert")
    network.model.save_pretrained(folder)
    network.tokenizer.save_pretrained(folder)
    return folder


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


def test_an_adapter_is_part_of_the_network(directory, tmp_path):
    adapted = adapter(tiny.network("bert").model, tmp_path)
    how = {"pretrained": str(directory), "device": "cpu", "estimator": "exact"}
    lm, plain = LatentMDM(**how, peft=str(tmp_path)), LatentMDM(**how)
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    truth = tiny.Truth(tiny.denoiser(adapted), tiny.TargetTokens((), TOKENS)).exact
    # Adapters compute in float32.
    assert found == pytest.approx(truth, abs=64 * torch.finfo(torch.float32).eps)
    (without,) = plain.loglikelihood_rolling(rolling(TEXT))
    assert found != pytest.approx(without, abs=1e-3), "premise: the adapter matters"
    assert lm.fingerprint["checkpoint"] != plain.fingerprint["checkpoint"]


def test_an_adapter_hides_nothing_of_its_network(tmp_path):
    """What it is called with (a time, MDLM), and whose scores a place has (Dream)."""
    for kind, shift in (("mdlm", 0), ("Dream", 1)):
        folder = tmp_path / kind
        folder.mkdir()
        how = {
            "pretrained": str(
                own_code.write(folder, kind, vocab_size=len(tiny.VOCABULARY))
            ),
            "device": "cpu",
            "trust_remote_code": True,
            "estimator": "exact",
        }
        bare = LatentMDM(**how)
        adapter(bare._loaded.model, folder / "adapter")
        lm = LatentMDM(**how, peft=str(folder / "adapter"))
        assert lm.fingerprint["logit_shift"] == shift
        assert lm.loglikelihood_rolling(rolling(TEXT))


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
    how = {"device": "cpu", "estimator": "exact"}
    lm, full = (LatentMDM(pretrained=str(f), **how) for f in (quantized, plain))
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    truth = tiny.Truth(tiny.denoiser(model), tiny.TargetTokens((), TOKENS)).exact
    assert found == pytest.approx(truth, abs=64 * torch.finfo(torch.float32).eps)
    (unrounded,) = full.loglikelihood_rolling(rolling(TEXT))
    assert found != pytest.approx(unrounded, abs=1e-4), "premise: it is quantized"
    assert lm.fingerprint["checkpoint"] != full.fingerprint["checkpoint"]


def test_what_transformers_takes_no_longer_is_said(directory):
    with pytest.raises(ValueError, match="load_in_4bit: transformers 5 takes this arg"):
        LatentMDM(pretrained=str(directory), device="cpu", load_in_4bit=True)
