"""Arguments of networks: code of a folder runs when asked, odd values are named."""

import json
from functools import partial

import pytest

from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.wrappers.mdm import own_code
from tests.wrappers.mdm import tiny as masked

OWN = """
from transformers import GPT2Config, GPT2LMHeadModel


class OwnConfig(GPT2Config):
    model_type = "own"


class OwnLM(GPT2LMHeadModel):
    config_class = OwnConfig
"""
MARKER = "from pathlib import Path\nPath({!r}).touch()\n"
BACKENDS = {"tokens": LatentTokens, "cot": LatentCoT, "mdm": LatentMDM}
NEEDED = {"cot": {"think_start": "", "think_end": "a"}}


def plain(folder):
    """Write a network that needs no code."""
    return tiny_causal.save(folder, tiny_causal.letters())


def write_own_code(folder, backend, marker):
    """Write a network whose code leaves a file when it runs."""
    if backend == "mdm":
        own_code.write(folder, "llada")
    else:
        plain(folder)
        (folder / "own.py").write_text(OWN)
        config = json.loads((folder / "config.json").read_text())
        named = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnLM"}
        config |= {"model_type": "own", "auto_map": named}
        (folder / "config.json").write_text(json.dumps(config))
    code = folder / "own.py"
    code.write_text(MARKER.format(str(marker)) + code.read_text())


def opened(folder, kind="tokens", /, **given):
    needed = {"device": "cpu", **NEEDED.get(kind, {})}
    return BACKENDS[kind](pretrained=str(folder), **{**needed, **given})


@pytest.fixture(params=BACKENDS)
def guarded(request, tmp_path):
    """What loads a folder whose code leaves a file when it runs, and that file."""
    folder, marker = tmp_path / f"own_{request.param}", tmp_path / "ran"
    folder.mkdir()
    write_own_code(folder, request.param, marker)
    return partial(opened, folder, request.param), marker


def test_code_of_a_folder_does_not_run_until_it_is_trusted(guarded, monkeypatch):
    load, marker = guarded
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load()
    for trust in ("false", "no", "FALSE", 0, None, "", "maybe", 2):
        with pytest.raises(ValueError, match="trust_remote_code"):
            load(trust_remote_code=trust)
        assert not marker.exists(), trust
    assert load(trust_remote_code="True").fingerprint["checkpoint"]
    assert marker.exists()


def test_a_latent_model_is_told_who_reads_it(lstm_directory):
    for name in BACKENDS:
        with pytest.raises(ValueError, match=r"a lstm model, which latent_lstm reads"):
            opened(lstm_directory, name)
    with pytest.raises(ValueError, match=r"lstm model.*AutoModelForCausalLM"):
        SegmentedLM.open_directory(lstm_directory, dtype=None, device="cpu")


WRONG = {
    "trust_remote_code": "si",
    "truncation": 3,
    "log_weights": "x",
    "dtype": "abc",
    "max_length": 0,
    "backend": "abc",
    "chat_template_args": [1],
    "peft": True,
    "device": "abc",
    "n_layer": "x",
    "quantization_config": 3,
    "seed": "x",
}
"""Of every kind that signatures of lm-eval and transformers declare."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plain(tmp_path_factory.mktemp("plain"))


def test_a_masked_network_is_told_who_reads_it(tmp_path):
    network = masked.network("modernbert")
    tiny_causal.save(tmp_path, network.tokenizer, network.model)
    said = r"type modernbert predicts masked tokens, which latent_mdm reads$"
    with pytest.raises(ValueError, match=said):
        opened(tmp_path, "tokens")
    with pytest.raises(ValueError, match=said):
        SegmentedLM.open_directory(tmp_path, dtype=None, device="cpu")


def test_a_wrong_value_or_name_is_named(folder):
    for name, value in WRONG.items():
        message = f"{name}={value!r}".replace("[", r"\[")
        with pytest.raises(ValueError, match=message):
            opened(folder, **{name: value})
    with pytest.raises(ValueError, match=r"'trust_remote_cod'.*mean trust_remote_code"):
        opened(folder, trust_remote_cod=1)
    with pytest.raises(ValueError, match="'zzz'"):
        opened(folder, zzz=1)


NARROW = (
    {"mixed_precision_dtype": "bfloat16"},
    "mixed_precision_dtype=bfloat16: .* leave it out",
)
OPTIONS = {
    "tokens": [
        NARROW,
        ({"estimator": "exat"}, r"estimator='exat': .*did you mean exact"),
        ({"end": "bos"}, "end='bos': expected one of none, prefix, eos"),
        ({"context_tokens": -1}, "context_tokens=-1"),
        ({"contxt_tokens": 3}, "did you mean context_tokens"),
    ],
    "cot": [
        NARROW,
        ({"think_end": ""}, "think_end=''"),
        ({"close": "forcd"}, r"close='forcd'.*did you mean forced"),
        ({"max_think_tokens": 0}, "max_think_tokens=0"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"model_temperature": 0}, "model_temperature=0"),
        ({"hint": "{question}"}, "lacks {answer}"),
        *(
            (given, "enable_thinking=False: latent_cot")
            for told in ("no", False)
            for given in (
                {"enable_thinking": told},
                {"chat_template_args": {"enable_thinking": told}},
            )
        ),
    ],
    "mdm": [
        *((NARROW[0] | {"estimator": e}, NARROW[1]) for e in ("auto", "exact")),
        ({"estimator": "elbow"}, "estimator='elbow': .*did you mean elbo"),
        ({"num_samples": 0}, "num_samples='?0'?: expected a whole number of at least"),
        ({"logit_shift": 2}, "logit_shift='2': expected one of 0, 1"),
    ],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_cannot_be_are_said_before_anything_is_loaded(
    folder, name, monkeypatch
):
    kind = BACKENDS[name]
    monkeypatch.setattr(kind, "loader", lambda *_, **__: pytest.fail("loaded"))
    for given, why in OPTIONS[name]:
        with pytest.raises(ValueError, match=why):
            opened(folder, name, **given)


def test_arguments_of_transformers_still_pass(folder):
    lm = opened(
        folder,
        revision=1,
        attn_implementation="eager",
        attn_pdrop=0.0,
        use_safetensors="true",
        low_cpu_mem_usage=True,
        dtype="torch.float32",
    )
    assert lm.fingerprint["dtype"] == "torch.float32"
